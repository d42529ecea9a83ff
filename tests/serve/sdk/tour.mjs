// All that the SDK for JavaScript does with a sandbox, as it is on npm.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// It lies where the test has put it, and not beside this file.
const here = createRequire(`${process.env.NODE_CLIENTS}/x.js`);
const { ConnectionConfig, Sandbox, SandboxApiException, SandboxManager } = await import(
  pathToFileURL(here.resolve("@alibaba-group/opensandbox")).href
);

const connectionConfig = new ConnectionConfig({ useServerProxy: Boolean(process.env.THROUGH_PROXY) });
const texts = (lines) => lines.map((line) => line.text);

// As the README of OpenSandbox begins: create, run, write, read.
const sandbox = await Sandbox.create({
  connectionConfig,
  image: "host",
  timeoutSeconds: 10 * 60,
  metadata: { tour: "js" },
});
try {
  const execution = await sandbox.commands.run("echo 'Hello Sandbox!'");
  assert.deepEqual(texts(execution.logs.stdout), ["Hello Sandbox!"]);

  await sandbox.files.createDirectories([{ path: "/tmp/demo", mode: 755 }]);
  await sandbox.files.writeFiles([{ path: "/tmp/demo/hello.txt", data: "Hello World", mode: 644 }]);
  assert.equal(await sandbox.files.readFile("/tmp/demo/hello.txt"), "Hello World");
  const found = await sandbox.files.search({ path: "/tmp/demo", pattern: "*.txt" });
  assert.deepEqual(found.map((file) => file.path), ["/tmp/demo/hello.txt"]);
  const info = await sandbox.files.getFileInfo(["/tmp/demo/hello.txt"]);
  assert.equal(info["/tmp/demo/hello.txt"].mode, 644);
  await sandbox.files.deleteDirectories(["/tmp/demo"]);

  const seen = [];
  const handlers = { onStdout: (line) => seen.push(line.text), onStderr: (line) => seen.push(`!${line.text}`) };
  const failed = await sandbox.commands.run("echo out; echo err >&2; exit 7", undefined, handlers);
  assert.deepEqual(seen.sort(), ["!err", "out"]);
  assert.equal(failed.error.value, "7");
  const background = await sandbox.commands.run("echo later; sleep 1000", { background: true });
  assert.equal((await sandbox.commands.getCommandStatus(background.id)).running, true);
  await sandbox.commands.interrupt(background.id);
  assert.equal((await sandbox.commands.getCommandStatus(background.id)).running, false);

  assert.equal((await sandbox.getInfo()).status.state, "Running");
  assert.ok(await sandbox.isHealthy());
  assert.ok((await sandbox.getMetrics()).cpuCount > 0);
  assert.match((await sandbox.getEndpoint(44772)).endpoint, /\/44772$/);
  await sandbox.renew(30 * 60);

  const manager = SandboxManager.create({ connectionConfig });
  const list = await manager.listSandboxInfos({ states: ["Running"], metadata: { tour: "js" }, pageSize: 10 });
  assert.deepEqual(list.items.map((item) => item.id), [sandbox.id]);
  await assert.rejects(manager.getSandboxInfo("nonesuch"), SandboxApiException);
  await manager.close();

  await sandbox.pause();
  const resumed = await sandbox.resume();
  assert.deepEqual(texts((await resumed.commands.run("echo again")).logs.stdout), ["again"]);
} finally {
  await sandbox.kill();
  await sandbox.close();
}
