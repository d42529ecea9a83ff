"""Create, run, write, read, kill: what the README of OpenSandbox begins with."""

import asyncio
import os
from datetime import timedelta

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models import WriteEntry


async def main():
    config = ConnectionConfig(use_server_proxy=bool(os.environ.get("THROUGH_PROXY")))
    sandbox = await Sandbox.create(
        "host",
        entrypoint=["tail", "-f", "/dev/null"],
        env={"PYTHON_VERSION": "3.11"},
        timeout=timedelta(minutes=10),
        connection_config=config,
    )
    async with sandbox:
        execution = await sandbox.commands.run("echo 'Hello OpenSandbox!'")
        assert [line.text for line in execution.logs.stdout] == ["Hello OpenSandbox!"], execution
        assert execution.exit_code == 0, execution
        await sandbox.files.write_files([WriteEntry(path="/tmp/hello.txt", data="Hello World", mode=644)])
        content = await sandbox.files.read_file("/tmp/hello.txt")
        assert content == "Hello World", content
        await sandbox.kill()


asyncio.run(main())
