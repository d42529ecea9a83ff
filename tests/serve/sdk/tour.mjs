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
  assert.equal(await sandbox.files.readFile("/tmp/demo/hello.txt", { range: "bytes=6-8" }), "Wor");
  await sandbox.files.writeFiles([{ path: "/tmp/demo/lines", data: "1\n2\n3\n4\n" }]);
  assert.equal(await sandbox.files.readFile("/tmp/demo/lines", { offset: 2, limit: 2 }), "2\n3");
  const replaced = await sandbox.files.replaceContentsDetailed([
    { path: "/tmp/demo/hello.txt", oldContent: "l", newContent: "L" },
  ]);
  assert.deepEqual(replaced.map((each) => each.replacedCount), [3]);
  await sandbox.files.moveFiles([{ src: "/tmp/demo/hello.txt", dest: "/tmp/demo/deep/moved.txt" }]);
  await sandbox.files.setPermissions([{ path: "/tmp/demo/deep/moved.txt", mode: 600 }]);
  assert.equal((await sandbox.files.getFileInfo(["/tmp/demo/deep/moved.txt"]))["/tmp/demo/deep/moved.txt"].mode, 600);
  assert.equal(await sandbox.files.readFile("/tmp/demo/deep/moved.txt"), "HeLLo WorLd");
  const listed = await sandbox.files.listDirectory({ path: "/tmp/demo" });
  assert.deepEqual(listed.map((file) => file.path), ["/tmp/demo/deep", "/tmp/demo/lines"]);
  await sandbox.files.deleteFiles(["/tmp/demo/lines"]);
  await sandbox.files.deleteDirectories(["/tmp/demo"]);

  const session = await sandbox.commands.createSession({ workingDirectory: "/tmp" });
  await sandbox.commands.runInSession(session, "export SAID=kept; cd /usr");
  const inSession = await sandbox.commands.runInSession(session, "pwd; echo $SAID");
  assert.deepEqual(texts(inSession.logs.stdout), ["/usr", "kept"]);
  await sandbox.commands.deleteSession(session);
  await assert.rejects(sandbox.commands.runInSession(session, "true"));

  await sandbox.patchEgressRules([{ action: "deny", target: "pypi.org" }]);
  assert.deepEqual((await sandbox.getEgressPolicy()).egress, [{ action: "deny", target: "pypi.org" }]);
  await sandbox.deleteEgressRules(["pypi.org"]);

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
