"""All that the SDK does with a sandbox, and what its own end-to-end tests look at."""

import asyncio
import os
from datetime import datetime, timedelta, timezone

from opensandbox import Sandbox, SandboxManager, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models import WriteEntry
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
)
from opensandbox.models.sandboxes import NetworkRule, SandboxFilter

PROXY = bool(os.environ.get("THROUGH_PROXY"))


def texts(lines):
    return [line.text for line in lines]


async def life(sandbox, config):
    info = await sandbox.get_info()
    assert info.status.state == "Running" and info.entrypoint[-3:] == ["tail", "-f", "/dev/null"], info
    assert info.metadata == {"tour": "yes"}, info
    assert timedelta(minutes=1) < info.expires_at - info.created_at < timedelta(minutes=6), info
    endpoint = await sandbox.get_endpoint(44772)
    assert "/" not in endpoint.endpoint or endpoint.endpoint.endswith("/44772"), endpoint
    renewed = await sandbox.renew(timedelta(minutes=20))
    left = (await sandbox.get_info()).expires_at - datetime.now(timezone.utc)
    assert timedelta(minutes=18) < left < timedelta(minutes=22), (renewed, left)
    assert await sandbox.is_healthy()
    metrics = await sandbox.get_metrics()
    assert metrics.cpu_count > 0 and 0 <= metrics.memory_used_in_mib <= metrics.memory_total_in_mib, metrics
    policy = await sandbox.get_egress_policy()
    assert policy.default_action == "deny" and policy.egress == [], policy
    await sandbox.patch_egress_rules([NetworkRule(action="deny", target=each) for each in ("pypi.org", "*.example.com")])
    assert [rule.target for rule in (await sandbox.get_egress_policy()).egress] == ["pypi.org", "*.example.com"]
    await sandbox.delete_egress_rules(["pypi.org", "never.said"])
    assert [rule.target for rule in (await sandbox.get_egress_policy()).egress] == ["*.example.com"]
    try:
        await sandbox.patch_egress_rules([NetworkRule(action="allow", target="pypi.org")])
        raise AssertionError("nothing can be allowed")
    except SandboxApiException as error:
        assert error.status_code == 501 and "no network" in str(error), error
    patched = await sandbox.patch_metadata({"tour": None, "more": "x"})
    assert patched.metadata == {"more": "x"}, patched
    async with await SandboxManager.create(connection_config=config) as manager:
        found = await manager.list_sandbox_infos(SandboxFilter(states=["Running"], metadata={"more": "x"}))
        assert [info.id for info in found.sandbox_infos] == [sandbox.id], found
        found = await manager.list_sandbox_infos(SandboxFilter(metadata={"a b": "c&d"}))
        assert found.sandbox_infos == [], found
        try:
            await manager.get_sandbox_info("nonesuch")
            raise AssertionError("there is no such sandbox")
        except SandboxApiException as error:
            assert error.status_code == 404 and error.request_id, error


async def diagnostics(sandbox):
    await sandbox.commands.run("echo for the logs")
    logs = await sandbox.get_diagnostic_logs("all")
    assert logs.kind == "logs" and logs.delivery == "inline" and "for the logs" in logs.content, logs
    assert (await sandbox.get_diagnostic_logs("container")).content == "", "it only waits"
    events = await sandbox.get_diagnostic_events("runtime")
    assert "echo for the logs" in events.content and "created from" not in events.content, events
    try:
        await sandbox.get_diagnostic_logs("kernel")
        raise AssertionError("there is no such scope")
    except SandboxApiException as error:
        assert error.status_code == 400, error


async def commands(sandbox):
    run = sandbox.commands.run
    failed = await run("echo out; echo err >&2; exit 7")
    assert texts(failed.logs.stdout) == ["out"] and texts(failed.logs.stderr) == ["err"], failed
    assert failed.exit_code == 7 and failed.error.name == "CommandExecError" and failed.complete is None, failed
    assert texts((await run(["printf", "%s", "$HOME"])).logs.stdout) == ["$HOME"]
    options = RunCommandOpts(working_directory="/tmp", envs={"X": "y"}, uid=1000, timeout=timedelta(seconds=30))
    assert texts((await run("pwd; echo $X; id -u", opts=options)).logs.stdout) == ["/tmp", "y", "1000"]
    await sandbox.commands.set_env("KEPT", "it's \"kept\"\nhere")
    assert texts((await run('echo "$KEPT"')).logs.stdout) == ["it's \"kept\"", "here"]
    for value in ["cost $5 ${HOME} tail", "line1\nline2", "a=b=c", "it's fine", "", "last"]:
        await sandbox.commands.set_env("AGAIN", value)
        assert "\n".join(texts((await run('printf "[%s]" "$AGAIN"')).logs.stdout)) == f"[{value}]", value
    late = await run("sleep 1000", opts=RunCommandOpts(timeout=timedelta(milliseconds=50)))
    assert late.exit_code == -1, late

    await run("mkfifo /tmp/go")
    background = await run("echo one; echo two >&2; cat /tmp/go", opts=RunCommandOpts(background=True))
    assert background.exit_code is None and background.id, background
    assert (await sandbox.commands.get_command_status(background.id)).running
    logs = await sandbox.commands.get_background_command_logs(background.id)
    while logs.cursor < len("one\ntwo\n"):
        logs = await sandbox.commands.get_background_command_logs(background.id)
    await sandbox.commands.interrupt(background.id)
    status = await sandbox.commands.get_command_status(background.id)
    assert not status.running and status.exit_code == -1, status
    logs = await sandbox.commands.get_background_command_logs(background.id)
    assert sorted(logs.content.split()) == ["one", "two"] and logs.cursor == 8, logs


async def sessions(sandbox):
    commands = sandbox.commands
    session = await commands.create_session(working_directory="/tmp")
    run = commands.run_in_session
    first = await run(session, "export SAID='it is'; local_only=1; mkdir -p deep; cd deep; echo out; echo err >&2")
    assert texts(first.logs.stdout) == ["out", "err"] and first.exit_code == 0 and first.id == session, first
    second = await run(session, "pwd; echo $SAID [$local_only]")
    assert texts(second.logs.stdout) == ["/tmp/deep", "it is []"], second
    failed = await run(session, "cd /; exit 7")
    assert failed.exit_code == 7 and failed.error.name == "CommandExecError" and failed.complete is None, failed
    assert texts((await run(session, "pwd")).logs.stdout) == ["/"]
    assert texts((await run(session, "pwd", working_directory="/tmp")).logs.stdout) == ["/tmp"]
    assert texts((await run(session, "pwd")).logs.stdout) == ["/tmp"]
    late = await run(session, "sleep 1000", timeout=timedelta(milliseconds=50))
    assert late.exit_code == -1, late
    other = await commands.create_session()
    assert texts((await run(other, "echo [$SAID]")).logs.stdout) == ["[]"]
    await commands.delete_session(session)
    try:
        await run(session, "true")
        raise AssertionError("it is gone")
    except SandboxApiException as error:
        assert error.status_code == 404, error


async def files(sandbox):
    files = sandbox.files
    await files.create_directories([WriteEntry(path="/tour/a", mode=755), WriteEntry(path="/tour/b", mode=700)])
    await files.write_files(
        [WriteEntry(path="/tour/a/x.txt", data="x y x", mode=644), WriteEntry(path="/tour/b/z.bin", data=b"\0\xff", mode=600)]
    )
    info = await files.get_file_info(["/tour/a", "/tour/a/x.txt"])
    assert info["/tour/a"].mode == 755 and info["/tour/a/x.txt"].mode == 644, info
    assert abs(info["/tour/a/x.txt"].created_at - info["/tour/a/x.txt"].modified_at) < timedelta(seconds=2), info
    assert await files.read_bytes("/tour/b/z.bin") == b"\0\xff"
    assert await files.read_file("/tour/a/x.txt", range_header="bytes=0-2") == "x y"
    large = bytes(range(256)) * 20000
    await files.write_file("/tour/large", large)
    assert b"".join([piece async for piece in await files.read_bytes_stream("/tour/large")]) == large
    await files.write_file("/tour/lines", "line1\nline2\nline3\nline4\n")
    assert await files.read_file("/tour/lines", offset=2, limit=2) == "line2\nline3"
    found = await files.search(SearchEntry(path="/tour", pattern="*.txt"))
    assert [entry.path for entry in found] == ["/tour/a/x.txt"], found
    listed = await files.list_directory(DirectoryListEntry(path="/tour"))
    assert [entry.path for entry in listed] == ["/tour/a", "/tour/b", "/tour/large", "/tour/lines"], listed
    replaced = await files.replace_contents_detailed(
        [ContentReplaceEntry(path="/tour/a/x.txt", old_content="x", new_content="w")]
    )
    assert [result.replaced_count for result in replaced] == [2], replaced
    await files.move_files([MoveEntry(src="/tour/a/x.txt", dest="/tour/c/w.txt")])
    assert await files.read_file("/tour/c/w.txt") == "w y w"
    await files.set_permissions([SetPermissionEntry(path="/tour/c/w.txt", mode=600)])
    assert (await files.get_file_info(["/tour/c/w.txt"]))["/tour/c/w.txt"].mode == 600
    await files.delete_files(["/tour/c/w.txt"])
    try:
        await files.read_file("/tour/c/w.txt")
        raise AssertionError("it is gone")
    except SandboxApiException as error:
        assert error.status_code == 404, error
    # A directory that its mode closes to all is no hindrance to root, and files get other owners and keep them.
    await files.create_directories([WriteEntry(path="/tour/shut", mode=644)])
    await files.write_files([WriteEntry(path="/tour/given", data="1", owner="nobody", group="nogroup", mode=755)])
    given = (await files.get_file_info(["/tour/given"]))["/tour/given"]
    assert (given.owner, given.group, given.mode) == ("nobody", "nogroup", 755), given
    await files.write_file("/tour/plain", "2")
    await files.set_permissions([SetPermissionEntry(path="/tour/plain", mode=600, owner="nobody", group="nogroup")])
    plain = (await files.get_file_info(["/tour/plain"]))["/tour/plain"]
    assert (plain.owner, plain.group, plain.mode) == ("nobody", "nogroup", 600), plain
    await files.move_files([MoveEntry(src="/tour/given", dest="/tour/shut/given")])
    assert await files.read_file("/tour/shut/given") == "1"
    await files.delete_directories(["/tour"])
    assert (await sandbox.commands.run("test ! -e /tour")).exit_code == 0
    theirs = sandbox.files_with_identity(1234, 77)
    await theirs.write_file("/tmp/theirs/file", "of 1234", mode=600)
    assert texts((await sandbox.commands.run("stat -c '%u %g' /tmp/theirs/file")).logs.stdout) == ["1234 77"]
    assert await theirs.read_file("/tmp/theirs/file") == "of 1234"
    try:
        await theirs.write_file("/root/file", "x")
        raise AssertionError("that is not his")
    except SandboxApiException as error:
        assert error.status_code == 500, error


async def states(sandbox, config):
    await sandbox.files.write_file("/root/kept", "kept")
    await sandbox.pause()
    assert (await sandbox.get_info()).status.state == "Paused"
    sandbox = await Sandbox.resume(sandbox.id, connection_config=config)
    assert await sandbox.files.read_file("/root/kept") == "kept"
    snapshot = await sandbox.create_snapshot("of-the-tour-" + sandbox.id)
    other = await Sandbox.create(snapshot_id=snapshot.id, timeout=None, connection_config=config)
    assert await other.files.read_file("/root/kept") == "kept"
    assert (await other.get_info()).expires_at is None
    connected = await Sandbox.connect(other.id, connection_config=config)
    assert await connected.files.read_file("/root/kept") == "kept"
    for each in (connected, sandbox):
        await each.kill()
    for each in (connected, other, sandbox):
        await each.close()


async def main():
    config = ConnectionConfig(use_server_proxy=PROXY)
    sandbox = await Sandbox.create(
        "host", timeout=timedelta(minutes=5), metadata={"tour": "yes"}, connection_config=config
    )
    await life(sandbox, config)
    await diagnostics(sandbox)
    await asyncio.gather(commands(sandbox), sessions(sandbox), files(sandbox))
    await states(sandbox, config)
    await sandbox.close()


def in_threads():
    sandbox = SandboxSync.create("host", connection_config=ConnectionConfigSync(use_server_proxy=PROXY))
    with sandbox:
        assert texts(sandbox.commands.run("echo here").logs.stdout) == ["here"]
        sandbox.kill()


asyncio.run(main())
in_threads()
