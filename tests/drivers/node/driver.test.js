// The Node driver with its default settings.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Binary, Int32, Long, MongoClient, ObjectId } from "mongodb";
import { cachesAreBuilt, startForebay } from "./server.js";

let server;
let client;
let db;

before(async () => {
  server = await startForebay();
  client = await new MongoClient(server.uri).connect();
  db = client.db("node");
});

after(async () => {
  await client?.close();
  server?.stop();
});

test("documents round-trip", async () => {
  const document = {
    _id: new ObjectId(),
    text: "héllo",
    number: 5,
    fraction: 1.5,
    long: Long.fromString("1152921504606846976"),
    list: [1, "two", { three: 3 }],
    date: new Date(0),
    nothing: null,
    bytes: new Binary(Buffer.from([0, 255])),
    pattern: /^a.*b$/i,
  };
  await db.collection("types").insertOne(document);
  const found = await db.collection("types").findOne({}, { promoteLongs: false, promoteValues: true });
  assert.deepEqual({ ...found, number: Number(found.number) }, document);
});

test("create, read, update, delete", async () => {
  const things = db.collection("crud");
  const inserted = await things.insertMany([{ _id: 1, n: 1 }, { _id: 2, n: 2 }, { _id: 3, n: 3 }]);
  assert.equal(inserted.insertedCount, 3);
  const updated = await things.updateMany({ n: { $gt: 1 } }, { $inc: { n: 10 }, $push: { log: "x" } });
  assert.deepEqual([updated.matchedCount, updated.modifiedCount], [2, 2]);
  assert.equal((await things.deleteOne({ _id: 1 })).deletedCount, 1);
  assert.deepEqual(await things.find().sort({ _id: -1 }).toArray(), [
    { _id: 3, n: 13, log: ["x"] },
    { _id: 2, n: 12, log: ["x"] },
  ]);
  const upserted = await things.updateOne({ _id: 9 }, { $set: { n: 9 } }, { upsert: true });
  assert.equal(upserted.upsertedId, 9);
});

test("a long cursor is read in batches", async () => {
  const things = db.collection("cursor");
  await things.insertMany(Array.from({ length: 1234 }, (_, _id) => ({ _id })));
  const ids = [];
  for await (const { _id } of things.find().batchSize(100).sort({ _id: 1 })) ids.push(_id);
  assert.deepEqual(ids, Array.from({ length: 1234 }, (_, _id) => _id));
});

test("aggregation", async () => {
  const things = db.collection("aggregation");
  await things.insertMany([{ k: "a", v: 1 }, { k: "b", v: 2 }, { k: "a", v: new Int32(3) }]);
  const groups = await things
    .aggregate([{ $group: { _id: "$k", sum: { $sum: "$v" } } }, { $sort: { _id: 1 } }])
    .toArray();
  assert.deepEqual(groups, [{ _id: "a", sum: 4 }, { _id: "b", sum: 2 }]);
  assert.equal(await things.countDocuments({ k: "a" }), 2);
});

test("searches over a cached field", async () => {
  const names = db.collection("names");
  await names.insertMany(Array.from({ length: 2000 }, (_, _id) => ({ _id, name: `package-${_id}` })));
  await names.createIndex({ name: "cache" });
  await cachesAreBuilt(names);
  assert.equal(await names.countDocuments({ name: /99$/ }), 20);
  assert.equal(await names.countDocuments({ name: /PACKAGE-1..$/i }), 100);
  const all = await names.find({}, { hint: { $natural: 1 } }).toArray();
  const small = all.filter(({ name }) => !/[5-9]/.test(name));
  assert.equal(await names.countDocuments({ name: { $not: /[5-9]/ } }), small.length);
  assert.deepEqual(await names.findOne({ name: "package-7" }), { _id: 7, name: "package-7" });
  const plan = JSON.stringify(await names.find({ name: /99$/ }).explain());
  assert.match(plan, /"tier":"/);
  assert.doesNotMatch(plan, /COLLSCAN/);
});

test("errors carry their codes", async () => {
  await assert.rejects(db.command({ florble: 1 }), { code: 59, codeName: "CommandNotFound" });
  await assert.rejects(db.collection("crud").findOne({ n: { $regex: "(" } }), { code: 51091 });
  await assert.rejects(db.collection("crud").insertOne({ _id: 2 }), { code: 11000 });
});

test("compressed by zlib", async () => {
  const compressed = await new MongoClient(server.uri, { compressors: ["zlib"] }).connect();
  const text = "forebay ".repeat(10_000);
  await compressed.db("node").collection("compressed").insertOne({ _id: 1, text });
  assert.equal((await compressed.db("node").collection("compressed").findOne()).text, text);
  await compressed.close();
});

test("sixteen concurrent operations", async () => {
  const things = db.collection("parallel");
  await Promise.all(Array.from({ length: 16 }, (_, _id) => things.insertOne({ _id })));
  assert.equal(await things.estimatedDocumentCount(), 16);
});
