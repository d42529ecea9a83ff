"""OpenSandbox's own server of MCP, driven by the official client, works against ours."""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

PROGRAM = os.path.join(os.path.dirname(sys.executable), "opensandbox-mcp")
PROXY = ["--use-server-proxy"] if os.environ.get("THROUGH_PROXY") else []


async def main():
    server = StdioServerParameters(command=PROGRAM, args=["--transport", "stdio", *PROXY], env=dict(os.environ))
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()

        async def call(name, **arguments):
            answer = await session.call_tool(name, arguments)
            text = "".join(part.text for part in answer.content)
            failed = getattr(answer, "is_error", getattr(answer, "isError", False))
            assert not failed, (name, text)
            return text

        made = json.loads(await call("sandbox_create", image="host", metadata={"by": "bridge"}))
        sandbox = made.get("id") or made["sandbox_id"]
        ran = await call("command_run", sandbox_id=sandbox, command="echo hello; echo oops >&2")
        assert "hello" in ran and "oops" in ran, ran
        await call("file_create_directories", sandbox_id=sandbox, entries=[{"path": "/tmp/deep/er", "mode": 755}])
        await call("file_write", sandbox_id=sandbox, path="/tmp/deep/er/x.txt", content="one two", mode=644)
        assert "one two" in await call("file_read", sandbox_id=sandbox, path="/tmp/deep/er/x.txt")
        assert "x.txt" in await call("file_search", sandbox_id=sandbox, path="/tmp/deep", pattern="*.txt")
        assert sandbox in await call("sandbox_list")
        assert "Running" in await call("sandbox_get_info", sandbox_id=sandbox)
        await call("sandbox_get_metrics", sandbox_id=sandbox)
        await call("sandbox_healthcheck", sandbox_id=sandbox)
        await call("sandbox_get_endpoint", sandbox_id=sandbox, port=44772)
        await call("sandbox_kill", sandbox_id=sandbox)


asyncio.run(main())
