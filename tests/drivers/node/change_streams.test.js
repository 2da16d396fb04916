// Change streams through the Node driver, which resumes them by itself.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { MongoClient } from "mongodb";
import { startForebay } from "./server.js";

let server;
let client;
let db;

before(async () => {
  server = await startForebay("--documents-change-history-bytes-max", "64MiB");
  client = await new MongoClient(server.uri).connect();
  db = client.db("node");
});

after(async () => {
  await client?.close();
  server?.stop();
});

test("a stream reports writes, and another resumes after an event", async () => {
  const things = db.collection("things");
  const stream = things.watch([], { fullDocument: "updateLookup", maxAwaitTimeMS: 10 });
  await stream.tryNext();
  await things.insertOne({ _id: 1, a: 1 });
  await things.updateOne({ _id: 1 }, { $set: { a: 2 } });
  await things.deleteOne({ _id: 1 });
  const inserted = await stream.next();
  const updated = await stream.next();
  const deleted = await stream.next();
  assert.deepEqual([inserted.fullDocument, updated.fullDocument], [{ _id: 1, a: 1 }, null]);
  assert.deepEqual(updated.updateDescription.updatedFields, { a: 2 });
  assert.equal(deleted.operationType, "delete");
  await stream.close();
  const resumed = things.watch([], { resumeAfter: inserted._id });
  assert.equal((await resumed.next()).operationType, "update");
  await resumed.close();
});

test("a stream ends with its collection", async () => {
  const gone = db.collection("gone");
  await gone.insertOne({});
  const stream = gone.watch([], { maxAwaitTimeMS: 10 });
  await stream.tryNext();
  await gone.drop();
  assert.equal((await stream.next()).operationType, "drop");
  assert.equal((await stream.next()).operationType, "invalidate");
  await stream.close();
});

test("a stream whose cursor is killed is resumed by the driver", async () => {
  const heard = db.collection("heard");
  const stream = heard.watch([], { maxAwaitTimeMS: 10 });
  await stream.tryNext();
  const reply = await db.command({ killCursors: "heard", cursors: [stream.cursor.id] });
  assert.equal(reply.cursorsKilled.length, 1);
  await heard.insertOne({ _id: 7 });
  assert.deepEqual((await stream.next()).documentKey, { _id: 7 });
  await stream.close();
});
