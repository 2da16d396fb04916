// The Node driver with its default settings, with Forebay as a proxy.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MongoClient } from "mongodb";
import { startForebay } from "./server.js";

let store;
let front;
let direct;
let proxied;

before(async () => {
  store = await startForebay();
  front = await startForebay("--upstream", store.uri);
  direct = await new MongoClient(store.uri).connect();
  proxied = await new MongoClient(front.uri, { compressors: ["zlib"] }).connect();
});

after(async () => {
  await direct?.close();
  await proxied?.close();
  front?.stop();
  store?.stop();
});

test("documents pass the proxy in batches", async () => {
  const documents = Array.from({ length: 1000 }, (_, id) => ({ _id: id, text: `text ${id}`.repeat(50) }));
  await proxied.db("node").collection("things").insertMany(documents);
  const found = await proxied.db("node").collection("things").find().batchSize(70).sort({ _id: 1 }).toArray();
  assert.deepEqual(found, documents);
  assert.equal(await direct.db("node").collection("things").countDocuments(), 1000);
});

test("concurrent commands get their own replies", async () => {
  const things = proxied.db("node").collection("beside");
  await Promise.all(Array.from({ length: 200 }, (_, id) => things.insertOne({ _id: id })));
  const found = await Promise.all(Array.from({ length: 200 }, (_, id) => things.findOne({ _id: id })));
  assert.deepEqual(found.map((document) => document._id), Array.from({ length: 200 }, (_, id) => id));
});
