// Fetches /status.json every two seconds and draws it. The server keeps no history: rates are differences between two
// samples, and the chart begins when the page was opened. Names come from users, so they are only set as text, never as
// HTML.
"use strict";

const PERIOD_MS = 2000;
const SAMPLES_MAX = 150; // five minutes
const LATENCY_SAMPLES = 30; // one minute
const EVENTS_SHOWN = 8;
const ROWS_SHOWN = 8;

const REASONS = {
  "no-cache-index": "the collection has no cache index",
  "no-cached-field": "the filter has no condition on a cached field",
  "predicate": "a condition on a cached field tests something other than strings, null or existence",
  "uncached-branch": "a branch of $or has no condition on a cached field",
  "uncached-under-negation": "a negation contains a condition on a field that is not cached",
  "building": "the cache is being built",
  "failed": "the cache could not be built",
  "collation": "the command has a collation",
  "hint": "the command has a hint to another index",
  "not-exact": "the cache can evaluate only a part of the filter",
  "values-not-cached": "the field whose values are counted is not cached",
};

/** The tiers, the fastest first. The index of a tier determines its hue. */
const TIERS = ["exact", "prefix", "suffix", "substring", "bit-parallel", "dfa", "large-dfa", "approximate", "pcre", "none"];

const samples = [];
const dark = matchMedia("(prefers-color-scheme: dark)");

const $ = (id) => document.getElementById(id);

/** Creates an element with attributes and children; a string becomes text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "colour") element.style.background = value;
    else if (name === "width") element.style.width = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const set = (id, text) => { $(id).textContent = text; };

// Formatting of numbers.

function count(n) {
  if (n >= 1e6) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 }).format(n);
  return new Intl.NumberFormat("en", { maximumFractionDigits: 0 }).format(n);
}

function rate(n) {
  if (n >= 100) return count(n);
  return new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format(n);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

function time(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

function age(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function percent(part, whole) {
  if (whole === 0) return "–";
  const share = (100 * part) / whole;
  return `${share === 100 || share < 10 ? Math.round(share * 10) / 10 : share.toFixed(share > 99 ? 2 : 1)} %`;
}

// Colours.

/** The colours of the first devices, by id. Further devices get hues a golden angle apart, so that neighbours differ. */
const DEVICES = ["#4285b8", "#62a89d", "#d8a354", "#9c7bb0", "#c77a6f", "#86a05a", "#7280c2", "#a08a6c"];

function deviceColour(id) {
  if (id === "host") return dark.matches ? "#4a5661" : "#c3ccd3";
  return DEVICES[Number(id)] || `hsl(${(205 + Number(id) * 137.508) % 360} 35% 55%)`;
}

function kindColour(kind) {
  if (kind.answeredBy === "index") return dark.matches ? "#6d7a86" : "#a9b4bd";
  if (kind.answeredBy === "scan") return dark.matches ? "#cf7d5c" : "#d77a52";
  const hue = 170 + TIERS.indexOf(kind.tier) * 13;
  return dark.matches ? `hsl(${hue} 42% 55%)` : `hsl(${hue} 45% 48%)`;
}

const kindName = (kind) => {
  if (kind.answeredBy !== "cache") return kind.answeredBy === "scan" ? "scan of the store" : "ordinary index";
  return kind.tier === "none" ? "cache, null and existence" : `cache, ${kind.tier}`;
};

// Differences between two samples.

const sum = (numbers) => numbers.reduce((all, n) => all + n, 0);

function span(from, to) {
  return Math.max(0.001, to.now - from.now);
}

/** Returns, for each kind of search, the searches between two samples, counted by range of latency. */
function between(from, to) {
  return to.searches.kinds.map((kind, place) => ({
    kind,
    counts: kind.counts.map((n, range) => n - from.searches.kinds[place].counts[range]),
  }));
}

/** Returns a quantile of the latency in seconds, interpolated within its range; null without searches. */
function quantile(counts, bounds, share) {
  const all = sum(counts);
  if (all === 0) return null;
  let rest = share * all;
  for (let range = 0; range < counts.length; range++) {
    if (rest <= counts[range] && counts[range] > 0) {
      const low = range > 0 ? bounds[range - 1] : 0;
      const high = bounds[Math.min(range, bounds.length - 1)];
      return (low + ((high - low) * rest) / counts[range]) / 1e6;
    }
    rest -= counts[range];
  }
  return bounds[bounds.length - 1] / 1e6;
}

function added(many) {
  return many.reduce((all, one) => all.map((n, range) => n + one[range]), many[0].map(() => 0));
}

// The parts of the page.

function drawHead(now) {
  const failing = now.problems.length > 0;
  const health = $("health");
  health.textContent = failing ? "failing" : "serving";
  health.classList.toggle("failing", failing);
  $("problems").replaceChildren(...now.problems.map((problem) => make("li", {}, problem)));
  const about = [`version ${now.version}`, `up ${age(now.uptimeSeconds)}`, `${bytes(now.residentBytes)} of memory`];
  if (now.upstream) about.push(`proxy of ${now.upstream}`);
  else about.push(`${count(now.store.documents)} documents`);
  set("about", about.join(" · "));
}

function drawTiles(now, before, minute) {
  const bounds = now.searches.boundsMicros;
  const total = sum(now.searches.kinds.map((kind) => sum(kind.counts)));
  const recent = between(before, now);
  // A rate needs two samples.
  set("rate", before === now ? "…" : rate(sum(recent.map((one) => sum(one.counts))) / span(before, now)));
  set("total", `${count(total)} since start, ${count(now.searches.slow)} slow, ${count(now.searches.failed)} failed`);
  const cached = sum(now.searches.kinds.filter((kind) => kind.answeredBy === "cache").map((kind) => sum(kind.counts)));
  set("hit", percent(cached, total));
  set("hit-of", `of ${count(total)} searches, ${bytes(now.searches.bytes)} scanned`);
  const window = added(between(minute, now).map((one) => one.counts));
  set("median", time(quantile(window, bounds, 0.5)));
  set("p99", sum(window) > 0 ? `p99 ${time(quantile(window, bounds, 0.99))}, last minute` : "none in the last minute");
  set("connections", count(now.connections.open));
  set("cursors", `${count(now.cursors)} cursors, ${count(now.connections.refused)} refused`);
  drawLag(Object.entries(now.upstreamLagSeconds));
}

function drawLag(lags) {
  $("lag-card").hidden = lags.length === 0;
  if (lags.length === 0) return;
  const [namespace, seconds] = lags.reduce((most, one) => (one[1] > most[1] ? one : most));
  set("lag", time(seconds));
  set("lag-of", namespace);
}

function bar(share) {
  return make("div", { class: "bar" }, make("i", { width: `${Math.min(100, 100 * share)}%` }));
}

/** The tenants of a device's memory, in the order of their colours. */
const TENANTS = ["documents", "tables", "other"];

function tenantColour(name) {
  if (name === "other") return deviceColour("host");
  return DEVICES[TENANTS.indexOf(name)] || DEVICES[TENANTS.length];
}

/** A bar with a part for each tenant of a device's memory; the rest is free. */
function tenantsBar(device) {
  const share = (tenant) => (device.memoryBudgetBytes > 0 ? tenant.usedBytes / device.memoryBudgetBytes : 0);
  const parts = device.tenants.map((tenant) => make("i", { colour: tenantColour(tenant.name), width: `${Math.min(100, 100 * share(tenant))}%` }));
  return make("div", { class: "bar parts" }, ...parts);
}

function tenantFigures(device) {
  const used = device.tenants.filter((tenant) => tenant.usedBytes > 0 || tenant.name === "tables");
  const figures = used.map((tenant) => {
    // A limit of a tenant is that of the device, unless a setting has another one.
    const limit = tenant.maxBytes < device.memoryBudgetBytes ? ` of ${bytes(tenant.maxBytes)}` : "";
    return make("span", {}, make("span", { class: "chip", colour: tenantColour(tenant.name) }), `${tenant.name} ${bytes(tenant.usedBytes)}${limit} `);
  });
  return [...figures, `${bytes(Math.max(0, device.memoryBudgetBytes - device.memoryUsedBytes))} free`];
}

function drawDevices(now, before) {
  const cards = now.devices.map((device) => {
    const old = before.devices.find((one) => one.id === device.id);
    const load = old ? Math.min(1, (device.busySeconds - old.busySeconds) / span(before, now)) : 0;
    const state = make("span", { class: device.state === "lost" ? "lost small" : "soft small" }, device.state);
    return make("div", {},
      make("div", { class: "row" }, make("h3", {}, make("span", { class: "chip", colour: deviceColour(device.id) }), device.name), state),
      make("div", { class: "soft small" }, device.reason || [device.gpu, `${count(device.buckets)} buckets`].filter(Boolean).join(" · ")),
      make("div", { class: "row small" }, make("span", { class: "soft" }, "memory"), `${bytes(device.memoryUsedBytes)} of ${bytes(device.memoryBudgetBytes)}`),
      tenantsBar(device),
      make("div", { class: "soft small" }, ...tenantFigures(device)),
      make("div", { class: "row small" }, make("span", { class: "soft" }, "load"), `${percent(load, 1)}, ${count(device.queuedJobs)} queued`),
      bar(load));
  });
  $("devices").replaceChildren(...cards);
}

/** Sizes a canvas for the pixels of the screen. Returns its context, and its size in CSS pixels. */
function surface(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { context, width, height };
}

function drawStrip(canvas, cells) {
  const { context, width, height } = surface(canvas);
  const gap = width / cells.length > 6 ? 1 : 0;
  cells.forEach((cell, place) => {
    const left = (place * width) / cells.length;
    const right = ((place + 1) * width) / cells.length - gap;
    const all = sum(Object.values(cell.buckets));
    let top = 0;
    for (const [device, buckets] of Object.entries(cell.buckets)) {
      const part = (height * buckets) / all;
      context.fillStyle = deviceColour(device);
      context.fillRect(left, top, Math.max(0.5, right - left), part);
      top += part;
    }
  });
}

function fieldFigures(field, now) {
  const names = new Map(now.devices.map((device) => [String(device.id), device.name]));
  const places = Object.entries(field.buckets).map(([device, buckets]) => `${names.get(device) || device} ${count(buckets)}`);
  const figures = [`${count(sum(Object.values(field.buckets)))} buckets: ${places.join(", ")}`];
  if (field.deltaRows > 0) figures.push(`${count(field.deltaRows)} in the delta`);
  if (field.recheckDocuments > 0) figures.push(`${count(field.recheckDocuments)} rechecked by the store`);
  return figures.join(" · ");
}

function drawField(cache, field, now) {
  const canvas = make("canvas", { role: "img", "aria-label": `buckets of ${cache.ns} ${field.path}` });
  const size = `${count(field.rows)} rows · ${bytes(field.valueBytes)} values + ${bytes(field.overheadBytes)} overhead`;
  const element = make("div", { class: "field" },
    make("div", { class: "row" }, make("h3", {}, cache.ns, " ", make("span", { class: "soft" }, field.path)), make("span", { class: "soft small" }, size)),
    canvas,
    make("div", { class: "soft small" }, fieldFigures(field, now)));
  return { element, draw: () => drawStrip(canvas, field.cells) };
}

function drawIndex(cache, index) {
  const text = index.state === "building" ? `building, ${count(index.done)} of ${count(index.total)} documents` : `failed: ${index.reason}`;
  return make("div", { class: "field" },
    make("div", { class: "row" }, make("h3", {}, cache.ns, " ", make("span", { class: "soft" }, index.name)), make("span", { class: index.state === "failed" ? "lost small" : "soft small" }, text)),
    index.state === "building" ? bar(index.total > 0 ? index.done / index.total : 1) : null);
}

function drawCaches(now) {
  const fields = now.caches.flatMap((cache) => cache.fields.map((field) => drawField(cache, field, now)));
  const unready = now.caches.flatMap((cache) => cache.indexes.filter((index) => index.state !== "ready").map((index) => drawIndex(cache, index)));
  const left = now.fieldsLeftOut > 0 ? [make("p", { class: "soft small" }, `and ${count(now.fieldsLeftOut)} more fields: /metrics has them`)] : [];
  const none = fields.length + unready.length === 0 ? [make("p", { class: "soft" }, "No field is cached yet: createIndex({field: \"cache\"}) caches one.")] : [];
  $("caches").replaceChildren(...unready, ...fields.map((field) => field.element), ...left, ...none);
  fields.forEach((field) => field.draw());
}

/** Returns the kinds of search that have occurred, with their indexes: the tiers of the cache first. */
function usedKinds(now) {
  return now.searches.kinds.map((kind, place) => ({ kind, place })).filter(({ kind }) => sum(kind.counts) > 0);
}

function drawTiers(now, before, minute) {
  const bounds = now.searches.boundsMicros;
  const [recent, window] = [between(before, now), between(minute, now)];
  const rows = usedKinds(now).map(({ kind, place }) => make("tr", {},
    make("td", {}, make("span", { class: "chip", colour: kindColour(kind) }), kindName(kind)),
    make("td", {}, rate(sum(recent[place].counts) / span(before, now))),
    make("td", {}, time(quantile(window[place].counts, bounds, 0.5))),
    make("td", {}, time(quantile(window[place].counts, bounds, 0.99))),
    make("td", { class: "wide" }, count(sum(kind.counts)))));
  $("tiers").replaceChildren(...(rows.length > 0 ? rows : [none("No search yet.")]));
}

function none(text) {
  return make("tr", {}, make("td", { class: "soft" }, text));
}

/** Draws the rate of each kind over all samples, as stacked areas. */
function drawChart() {
  const { context, width, height } = surface($("chart"));
  const now = samples[samples.length - 1];
  const kinds = usedKinds(now);
  const steps = samples.slice(1).map((to, index) => {
    const from = samples[index];
    const counts = between(from, to);
    return kinds.map(({ place }) => sum(counts[place].counts) / span(from, to));
  });
  const most = Math.max(1, ...steps.map(sum));
  const foot = height - 16;
  const x = (step) => width - ((steps.length - 1 - step) * width) / (SAMPLES_MAX - 2);
  const y = (value) => foot - (value / most) * (foot - 6);
  const base = steps.map(() => 0);
  kinds.forEach(({ kind }, place) => {
    context.beginPath();
    steps.forEach((_, step) => context.lineTo(x(step), y(base[step])));
    for (let step = steps.length - 1; step >= 0; step--) {
      base[step] += steps[step][place];
    }
    for (let step = steps.length - 1; step >= 0; step--) context.lineTo(x(step), y(base[step]));
    context.closePath();
    context.fillStyle = kindColour(kind);
    context.fill();
  });
  drawAxis(context, width, foot, most);
}

function drawAxis(context, width, foot, most) {
  const style = getComputedStyle(document.documentElement);
  context.fillStyle = style.getPropertyValue("--line");
  context.fillRect(0, foot, width, 1);
  context.fillStyle = style.getPropertyValue("--soft");
  context.font = "12px system-ui, sans-serif";
  context.fillText(`${rate(most)}/s`, 0, 11);
  context.fillText("5 minutes ago", 0, foot + 14);
  context.textAlign = "right";
  context.fillText("now", width, foot + 14);
}

function drawCounts(id, counts, empty, name = (key) => key) {
  const rows = Object.entries(counts).sort((a, b) => b[1] - a[1]).slice(0, ROWS_SHOWN);
  const cells = rows.map(([key, n]) => make("tr", {}, make("td", {}, name(key)), make("td", {}, count(n))));
  $(id).replaceChildren(...(cells.length > 0 ? cells : [none(empty)]));
}

function drawEvents(now) {
  const rows = now.deviceEvents.slice(0, EVENTS_SHOWN).map((event) => make("tr", {},
    make("td", {}, event.device, " ", make("span", { class: event.change === "lost" ? "lost" : "soft" }, event.reason ? `${event.change}: ${event.reason}` : event.change)),
    make("td", { class: "soft" }, `${age(now.now - event.at)} ago`)));
  $("events").replaceChildren(...(rows.length > 0 ? rows : [none("No device event yet.")]));
}

// SQL.

/** Texts of statements are one line here; the whole text is the tooltip. */
function statement(one) {
  const text = one.text === null ? "(text not shown: the page can be reached from other machines)" : one.text;
  return make("td", { class: "statement", title: text }, make("code", {}, text.replace(/\s+/g, " ")), make("div", { class: "soft small" }, one.user));
}

async function cancel(number, button) {
  button.disabled = true;
  try {
    await fetch(`/cancel?statement=${number}`, { method: "POST", headers: { "X-Forebay": "cancel" } });
  } finally {
    ask();
  }
}

function drawRunning(sql) {
  const rows = sql.running.map((one) => {
    const button = make("button", { type: "button" }, "Cancel");
    button.addEventListener("click", () => cancel(one.number, button));
    const share = one.rowsToRead ? Math.min(1, one.rowsRead / one.rowsToRead) : 0;
    const progress = one.rowsToRead ? `${count(one.rowsRead)} of ${count(one.rowsToRead)}` : count(one.rowsRead);
    return make("tr", {},
      statement(one),
      make("td", { class: "progress" }, progress, bar(share)),
      make("td", {}, count(one.rows)),
      make("td", {}, time(one.seconds)),
      make("td", {}, sql.mayCancel ? button : ""));
  });
  $("running").replaceChildren(...(rows.length > 0 ? rows : [none("No statement runs.")]));
}

function drawSlow(now) {
  const rows = now.tables.slowStatements.slice(0, ROWS_SHOWN).map((one) => make("tr", {},
    statement(one),
    make("td", { class: one.ending === "failed" ? "lost" : "soft" }, one.ending),
    make("td", {}, count(one.rows)),
    make("td", {}, time(one.seconds)),
    make("td", { class: "soft" }, `${age(now.now - one.at)} ago`)));
  $("slow").replaceChildren(...(rows.length > 0 ? rows : [none("No slow statement yet.")]));
}

function drawTables(sql) {
  const known = (n, format) => (n === null ? "–" : format(n));
  const rows = sql.tables.map((table) => make("tr", {},
    make("td", {}, table.schema === "public" ? table.name : `${table.schema}.${table.name}`, " ", make("span", { class: "soft small" }, table.isView ? "view" : table.gpu === null ? "" : `gpu = ${table.gpu}`)),
    make("td", {}, known(table.rows, count)),
    make("td", {}, known(table.bytes, bytes))));
  if (sql.tablesLeftOut > 0) rows.push(none(`${count(sql.tablesLeftOut)} more tables.`));
  $("tables").replaceChildren(...(rows.length > 0 ? rows : [none("No table is declared; files can be named by their path.")]));
}

function drawGpus(sql) {
  $("sql-gpus").hidden = sql.gpus.length === 0;
  set("sql-gpus-about", sql.gpus.map((gpu) => [`${gpu.device}: ${count(gpu.aggregates)} aggregates`, `${count(gpu.onCpu)} on the CPU`].join(" · ")).join("; "));
  const reasons = {};
  for (const [reason, n] of sql.gpus.flatMap((gpu) => Object.entries(gpu.reasons))) reasons[reason] = (reasons[reason] || 0) + n;
  drawCounts("sql-reasons", reasons, sum(sql.gpus.map((gpu) => gpu.onCpu)) > 0 ? "Reasons are shown to clients of the server's machine." : "None.");
}

function gpuColumn(column) {
  const size = (n) => (n > 0 ? bytes(n) : "–");
  const place = column.table === null ? column.file : column.table.replace(/^public\./, "");
  return make("tr", {},
    make("td", { class: "statement", title: `${column.name}\n${column.file}` }, make("code", {}, column.name), make("div", { class: "soft small" }, column.isDeclared ? `${place} · declared` : place)),
    make("td", {}, count(column.rows)),
    make("td", {}, size(column.deviceBytes)),
    make("td", {}, size(column.hostBytes)),
    make("td", {}, size(column.diskBytes)),
    make("td", { class: "soft" }, `${age(column.unusedSeconds)} ago`));
}

function drawGpuColumns(sql) {
  $("sql-columns").hidden = sql.gpus.length === 0;
  const total = (gpu) => `${gpu.device}: ${count(gpu.columns)} columns, ${bytes(gpu.columnBytes)} on the GPU, ${bytes(gpu.hostBytes)} on the host; ${bytes(gpu.diskBytes)} of column files`;
  set("sql-columns-about", sql.gpus.map(total).join("; "));
  const rows = sql.gpuColumns.flatMap((gpu) => gpu.largest.map(gpuColumn));
  const others = sql.gpuColumns.filter((gpu) => gpu.leftOut > 0);
  rows.push(...others.map((gpu) => none(`${count(gpu.leftOut)} more columns on ${gpu.device}, ${bytes(gpu.leftOutBytes)}.`)));
  const empty = sum(sql.gpus.map((gpu) => gpu.columns)) > 0 ? "Columns are shown to clients of the server's machine." : "None.";
  $("gpu-columns").replaceChildren(...(rows.length > 0 ? rows : [none(empty)]));
}

function drawSql(now, before) {
  $("sql").hidden = now.tables === null;
  if (now.tables === null) return;
  const sql = now.tables;
  const all = (one) => sum(Object.values(one.statements));
  const recent = before.tables === null || before === now ? "…" : rate((all(sql) - all(before.tables)) / span(before, now));
  const plans = sql.plansFound + sql.plansMade;
  set("sql-about", [`${recent} statements/s`, `${count(all(sql))} since start, ${count(sql.slow)} slow, ${count(sql.statements.failed)} failed`,
    `${count(sql.sessions)} sessions`, `${percent(sql.plansFound, plans)} of plans found from before`].join(" · "));
  drawRunning(sql);
  drawSlow(now);
  drawTables(sql);
  drawGpus(sql);
  drawGpuColumns(sql);
}

function draw() {
  const now = samples[samples.length - 1];
  const before = samples[Math.max(0, samples.length - 2)];
  const minute = samples[Math.max(0, samples.length - 1 - LATENCY_SAMPLES)];
  drawHead(now);
  drawTiles(now, before, minute);
  drawDevices(now, before);
  drawCaches(now);
  drawTiers(now, before, minute);
  drawChart();
  drawCounts("reasons", now.searches.cacheNotUsed, "None so far.", (reason) => REASONS[reason] || reason);
  drawCounts("commands", now.forwarded || now.commands, "No command yet.");
  drawEvents(now);
  drawSql(now, before);
}

// Polling.

let asking = false;
let answered = Date.now();

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const reply = await fetch("/status.json", { cache: "no-store" });
    if (!reply.ok) throw new Error(`${reply.status}`);
    take(await reply.json());
  } catch (error) {
    set("stale", `no reply from the server for ${age((Date.now() - answered) / 1000)} (${error.message})`);
    $("stale").classList.add("on");
  } finally {
    asking = false;
  }
}

function take(sample) {
  answered = Date.now();
  $("stale").classList.remove("on");
  const last = samples[samples.length - 1];
  // A restarted server counts from zero.
  if (last && sample.uptimeSeconds < last.uptimeSeconds) samples.length = 0;
  samples.push(sample);
  if (samples.length > SAMPLES_MAX) samples.shift();
  draw();
  document.body.dataset.samples = samples.length;
}

setInterval(ask, PERIOD_MS);
document.addEventListener("visibilitychange", ask);
dark.addEventListener("change", () => samples.length > 0 && draw());
addEventListener("resize", () => samples.length > 0 && draw());
ask();
