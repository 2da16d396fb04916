// Starts a Forebay server for a test file; the environment names the binary.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

/** Starts a server in memory on a free port; resolves to its connection string and a function that ends it. */
export function startForebay(...args) {
  const command = ["serve", "--memory", "--listen", "127.0.0.1:0", ...args];
  const child = spawn(process.env.FOREBAY, command, { stdio: ["ignore", "pipe", "inherit"] });
  return new Promise((resolve, reject) => {
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}`)));
    createInterface({ input: child.stdout }).on("line", (line) => {
      const found = line.match(/mongodb:\/\/[0-9.]+:[0-9]+/);
      if (found) resolve({ uri: found[0], stop: () => child.kill("SIGKILL") });
    });
  });
}

/** Waits until every cache of a collection is built. */
export async function cachesAreBuilt(collection) {
  for (;;) {
    const stats = await collection.aggregate([{ $indexStats: {} }]).toArray();
    if (!JSON.stringify(stats).includes('"state":"building"')) return;
  }
}
