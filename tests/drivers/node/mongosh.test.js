// Commands typed into mongosh.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { MODES, startForebay } from "./server.js";

const shell = new URL("node_modules/.bin/mongosh", import.meta.url).pathname;
let server;
let home;

before(async () => {
  server = await startForebay();
  home = await mkdtemp(join(tmpdir(), "mongosh-"));
});

after(() => server?.stop());

/** The output of a script; the shell has a home of its own, so that it reads nobody's settings. */
async function run(script, uri = server.uri, query = "") {
  const env = { ...process.env, HOME: home, DO_NOT_TRACK: "1" };
  const { stdout } = await promisify(execFile)(shell, [`${uri}/shell${query}`, "--quiet", "--eval", script], { env });
  return stdout.trim();
}

test("the shell connects and prints documents", async () => {
  const output = await run(`
    db.things.insertMany([{_id: 1, name: "react"}, {_id: 2, name: "vue"}]);
    print(JSON.stringify(db.things.find({name: /^r/}).toArray()));
  `);
  assert.equal(output, '[{"_id":1,"name":"react"}]');
});

test("indexes, caches, explanations and statistics are shown", async () => {
  const output = await run(`
    db.names.insertMany(Array.from({length: 500}, (_, n) => ({_id: n, name: "name " + n})));
    db.names.createIndex({name: "cache"});
    while (JSON.stringify(db.names.aggregate([{$indexStats: {}}]).toArray()).includes('"building"')) {}
    print(db.names.getIndexes().map(index => index.name).join());
    print(db.names.countDocuments({name: /9$/}));
    print(JSON.stringify(db.names.explain().count({name: /9$/})).includes("tier"));
    print(db.names.stats().count);
    print(db.stats().collections >= 1);
  `);
  assert.equal(output, "_id_,name_cache\n50\ntrue\n500\ntrue");
});

test("administrative helpers work", async () => {
  const output = await run(`
    db.things.insertOne({});
    print(db.getCollectionNames().includes("things"));
    print(db.adminCommand({listDatabases: 1}).databases.some(({name}) => name === "shell"));
    print(db.hello().isWritablePrimary);
    print(typeof db.version());
    print(db.serverStatus().ok);
    print(db.dropDatabase().ok);
  `);
  assert.equal(output, "true\ntrue\ntrue\nstring\n1\n1");
});

test("errors are shown with their names", async () => {
  const output = await run(`try { db.runCommand({florble: 1}) } catch (error) { print(error.codeName) }`);
  assert.equal(output, "CommandNotFound");
});

test("a replica set of one is found by its name", async (context) => {
  const { uri, stop } = await startForebay("--mongodb-replica-set", "rs0", "--documents-change-history-bytes-max", "64MiB");
  context.after(stop);
  const output = await run(`
    const stream = db.things.watch().disableBlockWarnings();
    db.things.insertOne({_id: 1}, {writeConcern: {w: "majority"}});
    db.things.updateOne({_id: 1}, {$set: {n: 2}});
    print(stream.next().operationType, stream.next().operationType);
    print(db.hello().setName, db.things.findOne().n);
  `, uri, "?replicaSet=rs0");
  assert.equal(output, "insert update\nrs0 2");
});

for (const [mode, startServer] of Object.entries(MODES)) {
  test(`a session, ${mode}`, async (context) => {
    const { uri, stop } = await startServer();
    context.after(stop);
    const output = await run(SESSION, uri);
    assert.deepEqual(output.split("\n"), [
      "1234 true 12", '{"_id":3,"n":10003}', '[{"_id":0,"n":617},{"_id":1,"n":617}]', "_id_,n_1", "11000", "1 1 1 1",
      "CommandNotFound", "session 1",
    ]);
  });
}

const SESSION = `
  db.things.insertMany(Array.from({length: 1234}, (_, n) => ({_id: n, n, text: "text " + n})));
  const read = db.things.find().sort({_id: 1}).batchSize(100).toArray();
  print(read.length, read.every(({_id}, n) => _id === n), db.things.countDocuments({text: /99$/}));
  db.things.updateOne({_id: 3}, {$inc: {n: 10_000}, $unset: {text: ""}});
  print(JSON.stringify(db.things.findOne({_id: 3})));
  db.parity.insertMany(read.map(({_id}) => ({odd: _id % 2})));
  const groups = db.parity.aggregate([{$group: {_id: "$odd", n: {$sum: 1}}}, {$sort: {_id: 1}}]);
  print(JSON.stringify(groups.toArray()));
  db.things.createIndex({n: 1}, {unique: true});
  print(db.things.getIndexes().map(({name}) => name).join());
  try { db.things.insertOne({n: 5}) } catch (error) { print(error.code) }
  const wrote = db.bulk.bulkWrite([
    {insertOne: {document: {_id: 1}}},
    {updateOne: {filter: {_id: 2}, update: {$set: {n: 2}}, upsert: true}},
    {replaceOne: {filter: {_id: 2}, replacement: {n: 3}}},
    {deleteOne: {filter: {_id: 1}}},
  ]);
  print(wrote.insertedCount, wrote.upsertedCount, wrote.matchedCount, wrote.deletedCount);
  try { db.runCommand({florble: 1}) } catch (error) { print(error.codeName) }
  const session = db.getMongo().startSession();
  session.getDatabase("shell").things.deleteOne({_id: 0});
  print("session", db.things.countDocuments({_id: {$lt: 2}}));
  session.endSession();
`;
