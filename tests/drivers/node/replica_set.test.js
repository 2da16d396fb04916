// A replica set of one member, through the Node driver: discovery by name, retried writes, change streams.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { MongoClient } from "mongodb";

import { startForebay } from "./server.js";

let server;
let client;

before(async () => {
  server = await startForebay("--mongodb-replica-set", "rs0", "--mongodb-test-commands", "--documents-change-history-bytes-max", "64MiB");
  client = await MongoClient.connect(`${server.uri}/?replicaSet=rs0`);
});

after(async () => {
  await client.close();
  server.stop();
});

test("a write whose reply is lost is retried and applied once", async () => {
  const things = client.db("test").collection("things");
  const loseReply = { configureFailPoint: "onPrimaryTransactionalWrite", mode: { times: 1 } };
  await client.db("admin").command(loseReply);
  await things.insertOne({ _id: 1, n: 0 });
  await client.db("admin").command(loseReply);
  const updated = await things.updateOne({ _id: 1 }, { $inc: { n: 1 } });
  assert.equal(updated.modifiedCount, 1);
  assert.deepEqual(await things.find().toArray(), [{ _id: 1, n: 1 }]);
});

test("a change stream follows", async () => {
  const things = client.db("test").collection("followed");
  const stream = things.watch();
  const next = stream.next();
  // The stream opens when the server has answered. It may miss earlier writes, so the test writes repeatedly.
  const writing = setInterval(() => things.insertOne({}).catch(() => {}), 100);
  assert.equal((await next).operationType, "insert");
  clearInterval(writing);
  await stream.close();
});

test("a transaction is refused, and not retried", async () => {
  const session = client.startSession();
  session.startTransaction();
  const things = client.db("test").collection("things");
  await assert.rejects(things.insertOne({}, { session }), { code: 263 });
  await session.endSession();
});
