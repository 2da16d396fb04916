// The Node driver with its default settings, through a Forebay in front of a store.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MongoClient } from "mongodb";
import { startForebay } from "./server.js";

let store;
let front;
let straight;
let through;

before(async () => {
  store = await startForebay();
  front = await startForebay("--upstream", store.uri);
  straight = await new MongoClient(store.uri).connect();
  through = await new MongoClient(front.uri, { compressors: ["zlib"] }).connect();
});

after(async () => {
  await straight?.close();
  await through?.close();
  front?.stop();
  store?.stop();
});

test("documents go through in batches", async () => {
  const documents = Array.from({ length: 1000 }, (_, id) => ({ _id: id, text: `text ${id}`.repeat(50) }));
  await through.db("node").collection("things").insertMany(documents);
  const found = await through.db("node").collection("things").find().batchSize(70).sort({ _id: 1 }).toArray();
  assert.deepEqual(found, documents);
  assert.equal(await straight.db("node").collection("things").countDocuments(), 1000);
});

test("commands beside each other get their own replies", async () => {
  const things = through.db("node").collection("beside");
  await Promise.all(Array.from({ length: 200 }, (_, id) => things.insertOne({ _id: id })));
  const found = await Promise.all(Array.from({ length: 200 }, (_, id) => things.findOne({ _id: id })));
  assert.deepEqual(found.map((document) => document._id), Array.from({ length: 200 }, (_, id) => id));
});
