// A session of the Node driver, on Forebay's own store and as a proxy of FerretDB.

import assert from "node:assert/strict";
import { test } from "node:test";
import { MongoClient } from "mongodb";
import { MODES } from "./server.js";

for (const [mode, startServer] of Object.entries(MODES)) {
  test(`a session, ${mode}`, async (context) => {
    const server = await startServer();
    context.after(() => server.stop());
    for (const compressors of [[], ["zlib"]]) await session(server.uri, compressors);
  });
}

async function session(uri, compressors) {
  const client = await new MongoClient(uri, { compressors, monitorCommands: true }).connect();
  const sent = {};
  client.on("commandStarted", ({ commandName }) => (sent[commandName] = (sent[commandName] ?? 0) + 1));
  const db = client.db(`session_${compressors.join()}`);
  await crud(db.collection("crud"));
  await cursor(db.collection("cursor"));
  assert.equal(sent.getMore, 12);
  await aggregation(db.collection("aggregation"));
  await indexes(db.collection("indexes"));
  await bulk(db.collection("bulk"));
  await errors(db);
  await client.withSession(async (session) => {
    await db.collection("sessions").insertOne({ _id: 1 }, { session });
    assert.deepEqual(await db.collection("sessions").findOne({}, { session }), { _id: 1 });
  });
  await client.close();
  assert.equal(sent.endSessions, 1);
}

async function crud(things) {
  const documents = [{ _id: 1, n: 1, text: "héllo" }, { _id: 2, n: 2 }, { _id: 3, n: 3 }];
  assert.equal((await things.insertMany(documents)).insertedCount, 3);
  const updated = await things.updateMany({ n: { $gt: 1 } }, { $inc: { n: 10 } });
  assert.deepEqual([updated.matchedCount, updated.modifiedCount], [2, 2]);
  assert.equal((await things.deleteOne({ _id: 2 })).deletedCount, 1);
  assert.equal((await things.replaceOne({ _id: 9 }, { n: 9 }, { upsert: true })).upsertedId, 9);
  assert.deepEqual(await things.findOneAndUpdate({ _id: 3 }, { $set: { n: 0 } }), { _id: 3, n: 13 });
  assert.deepEqual(await things.find({ text: /^h.*o$/ }).toArray(), [documents[0]]);
}

async function cursor(things) {
  const documents = Array.from({ length: 1234 }, (_, _id) => ({ _id, text: `text ${_id}` }));
  await things.insertMany(documents);
  assert.deepEqual(await things.find().sort({ _id: 1 }).batchSize(100).toArray(), documents);
  assert.equal(await things.countDocuments({ text: /99$/ }), 12);
}

async function aggregation(things) {
  await things.insertMany([{ k: "a", v: 1 }, { k: "b", v: 2 }, { k: "a", v: 3 }]);
  const groups = things.aggregate([{ $group: { _id: "$k", sum: { $sum: "$v" } } }, { $sort: { _id: 1 } }]);
  assert.deepEqual(await groups.toArray(), [{ _id: "a", sum: 4 }, { _id: "b", sum: 2 }]);
  assert.deepEqual(await things.distinct("k"), ["a", "b"]);
}

async function indexes(things) {
  assert.equal(await things.createIndex({ name: 1 }, { unique: true }), "name_1");
  await assert.rejects(things.insertMany([{ name: "x" }, { name: "x" }]), { code: 11000 });
  assert.deepEqual((await things.indexes()).map(({ name }) => name), ["_id_", "name_1"]);
  await things.dropIndex("name_1");
}

async function bulk(things) {
  const result = await things.bulkWrite([
    { insertOne: { document: { _id: 1 } } },
    { updateOne: { filter: { _id: 2 }, update: { $set: { n: 2 } }, upsert: true } },
    { deleteOne: { filter: { _id: 1 } } },
    { replaceOne: { filter: { _id: 2 }, replacement: { n: 3 } } },
  ]);
  const { insertedCount, upsertedIds, deletedCount, matchedCount } = result;
  assert.deepEqual([insertedCount, upsertedIds, deletedCount, matchedCount], [1, { 1: 2 }, 1, 1]);
}

async function errors(db) {
  await assert.rejects(db.command({ florble: 1 }), { code: 59, codeName: "CommandNotFound" });
  await assert.rejects(db.collection("crud").insertOne({ _id: 1 }), { code: 11000 });
  await assert.rejects(db.collection("crud").updateOne({}, { $florble: { a: 1 } }), { code: 9 });
}
