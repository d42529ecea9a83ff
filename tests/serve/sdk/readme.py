"""Create, run, write, read, run code, kill: the example of OpenSandbox's README, but for the image.

Its entrypoint is a program that only their images have."""

import asyncio
import os
from datetime import timedelta

from code_interpreter import CodeInterpreter, SupportedLanguage
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models import WriteEntry


async def main():
    config = ConnectionConfig(use_server_proxy=bool(os.environ.get("THROUGH_PROXY")))
    sandbox = await Sandbox.create(
        "host",
        entrypoint=[os.environ.get("ENTRYPOINT", "/opt/opensandbox/code-interpreter.sh")],
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
        interpreter = await CodeInterpreter.create(sandbox)
        code = """
            import sys
            print(sys.version)
            result = 2 + 2
            result
        """
        result = await interpreter.codes.run(code, language=SupportedLanguage.PYTHON)
        assert result.result[0].text == "4" and result.logs.stdout[0].text.startswith("3."), result
        await sandbox.kill()


asyncio.run(main())
