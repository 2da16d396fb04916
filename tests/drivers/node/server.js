// Starts servers for a test file. Environment variables name the binaries.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Starts a Forebay in memory on a free port; resolves to its connection string and a function that ends it. */
export function startForebay(...args) {
  const command = ["serve", "--memory", "--mongodb-listen", "127.0.0.1:0", ...args];
  return start(process.env.FOREBAY, command, /mongodb:\/\/([0-9.]+:[0-9]+)/);
}

/** Starts a Forebay that also serves PostgreSQL's protocol, on free ports; `uri` is the connection string for it. */
export async function startTables(...args) {
  const command = ["serve", "--memory", "--mongodb-listen", "127.0.0.1:0", "--postgres-listen", "127.0.0.1:0", ...args];
  return start(process.env.FOREBAY, command, /(postgresql:\/\/[0-9.]+:[0-9]+\/forebay)/);
}

/** Starts FerretDB on SQLite with nothing in it. */
export async function startFerretdb() {
  const folder = mkdtempSync(join(tmpdir(), "ferretdb-"));
  const paths = [`--sqlite-url=file:${folder}/`, `--state-dir=${folder}`];
  const command = ["--handler=sqlite", ...paths, "--listen-addr=127.0.0.1:0", "--telemetry=disable", "--debug-addr=-"];
  const { uri, stop } = await start(process.env.FERRETDB, command, /Listening on TCP ([0-9.]+:[0-9]+)/);
  return { uri, stop: () => stop() && rmSync(folder, { recursive: true, force: true }) };
}

/** Starts a server; it listens when what it prints matches `ready`. */
function start(binary, command, ready) {
  const child = spawn(binary, command, { stdio: ["ignore", "pipe", "pipe"] });
  const lines = [];
  return new Promise((resolve, reject) => {
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${lines.join("\n")}`)));
    const read = (line) => {
      lines.push(line);
      const found = line.match(ready);
      const uri = found?.[1].includes("://") ? found[1] : `mongodb://${found?.[1]}`;
      if (found) resolve({ uri, stop: () => child.kill("SIGKILL") });
    };
    for (const output of [child.stdout, child.stderr]) createInterface({ input: output }).on("line", read);
  });
}

/** Both ways to run Forebay: with documents of its own, and in front of FerretDB. */
export const MODES = {
  embedded: async () => startForebay(),
  upstream: async () => {
    const store = await startFerretdb();
    const front = await startForebay("--upstream", store.uri);
    return { uri: front.uri, stop: () => [front.stop(), store.stop()] };
  },
};

/** Waits until every cache of a collection is built. */
export async function cachesAreBuilt(collection) {
  for (;;) {
    const stats = await collection.aggregate([{ $indexStats: {} }]).toArray();
    if (!JSON.stringify(stats).includes('"state":"building"')) return;
  }
}
