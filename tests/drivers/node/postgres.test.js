// The tables door with node-postgres.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import pg from "pg";
import { startTables } from "./server.js";

let folder;
let server;
let client;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "tables-"));
  writeFileSync(join(folder, "people.csv"), "name,age\nAda,36\nAlan,41\n");
  server = await startTables("--tables", folder);
  client = new pg.Client({ connectionString: server.uri.replace("//", "//ada@") });
  await client.connect();
});

after(async () => {
  await client?.end();
  server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("rows and parameters", async () => {
  const people = await client.query("SELECT name, age FROM people WHERE age > $1", [40]);
  assert.deepEqual(people.rows, [{ name: "Alan", age: "41" }]);
  assert.equal(people.command, "SELECT");
  const values = await client.query("SELECT $1::int AS a, $2::text AS b, $3::boolean AS c, $4::float8 AS d", [1, "é", true, 1.5]);
  assert.deepEqual(values.rows, [{ a: 1, b: "é", c: true, d: 1.5 }]);
});

test("named statements run again", async () => {
  for (const age of [30, 40, 50]) {
    const { rows } = await client.query({ name: "older", text: "SELECT count(*) FROM people WHERE age > $1", values: [age] });
    assert.equal(rows[0].count, String([36, 41].filter((each) => each > age).length));
  }
});

test("errors have codes and positions, and the session goes on", async () => {
  await assert.rejects(client.query("SELECT nme FROM people"), { code: "42703", position: "8" });
  await assert.rejects(client.query("SELECT * FROM missing"), { code: "42P01" });
  assert.deepEqual((await client.query("SELECT 1 AS one")).rows, [{ one: "1" }]);
});

test("a pool of clients", async () => {
  const pool = new pg.Pool({ connectionString: server.uri.replace("//", "//ada@"), max: 8 });
  const sums = await Promise.all(Array.from({ length: 50 }, (_, n) => pool.query("SELECT $1::int + 1 AS n", [n])));
  assert.deepEqual(sums.map(({ rows }) => Number(rows[0].n)), Array.from({ length: 50 }, (_, n) => n + 1));
  await pool.end();
});
