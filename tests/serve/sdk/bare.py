"""The SDK on a small image: busybox and two accounts, no bash, no Python."""

import asyncio
import os
from datetime import timedelta

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxApiException
from opensandbox.models import WriteEntry
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import SearchEntry, SetPermissionEntry


def texts(lines):
    return [line.text for line in lines]


async def main():
    config = ConnectionConfig(use_server_proxy=bool(os.environ.get("THROUGH_PROXY")))
    sandbox = await Sandbox.create(os.environ["IMAGE"], timeout=timedelta(minutes=5), connection_config=config)
    async with sandbox:
        run = sandbox.commands.run
        assert texts((await run("command -v bash || echo none; echo $((6 * 7))")).logs.stdout) == ["none", "42"]
        assert texts((await run(["printf", "%s", "$HOME"])).logs.stdout) == ["$HOME"]
        assert (await run("exit 7")).exit_code == 7
        given = RunCommandOpts(working_directory="/tmp", envs={"X": "y"}, uid=1000)
        assert texts((await run("pwd; echo $X; id -u", opts=given)).logs.stdout) == ["/tmp", "y", "1000"]
        await sandbox.commands.set_env("KEPT", "it's kept")
        assert texts((await run("echo $KEPT")).logs.stdout) == ["it's kept"]

        commands = sandbox.commands
        session = await commands.create_session(working_directory="/tmp")
        await commands.run_in_session(session, "export SAID='it is'; mkdir -p deep; cd deep")
        again = await commands.run_in_session(session, "pwd; echo $SAID [$#]; echo err >&2")
        assert texts(again.logs.stdout) == ["/tmp/deep", "it is [0]", "err"], again
        assert (await commands.run_in_session(session, "exit 3")).exit_code == 3
        await commands.run_in_session(session, "rmdir /tmp/deep")
        assert (await commands.run_in_session(session, "true")).exit_code == 1
        assert (await commands.run_in_session(session, "true", working_directory="/tmp")).exit_code == 0
        await commands.delete_session(session)

        files = sandbox.files
        await files.write_files([WriteEntry(path="/data/f", data="1", owner="worker", group="workers", mode=640)])
        info = (await files.get_file_info(["/data/f"]))["/data/f"]
        assert (info.owner, info.group, info.mode) == ("worker", "workers", 640), info
        await files.set_permissions([SetPermissionEntry(path="/data/f", mode=600, owner="root", group="root")])
        info = (await files.get_file_info(["/data/f"]))["/data/f"]
        assert (info.owner, info.group, info.mode) == ("root", "root", 600), info
        try:
            await files.set_permissions([SetPermissionEntry(path="/data/f", mode=600, owner="nobody-here")])
            raise AssertionError("there is no such user")
        except SandboxApiException as error:
            assert error.status_code == 500, error
        found = await files.search(SearchEntry(path="/data", pattern="f"))
        assert [entry.path for entry in found] == ["/data/f"], found
        metrics = await sandbox.get_metrics()
        assert 0 < metrics.memory_used_in_mib <= metrics.memory_total_in_mib, metrics
        await sandbox.kill()


asyncio.run(main())
