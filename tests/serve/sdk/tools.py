"""The official client of MCP, over stdin and stdout or over HTTP, with every tool that is about boxes."""

import asyncio
import json
import os

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


async def tour(session):
    await session.initialize()
    names = {tool.name for tool in (await session.list_tools()).tools}
    assert {"create_sandbox", "execute_tool", "reset_sandbox", "replay_trajectory", "sandbox_snapshot", "shell"} <= names

    async def call(name, **arguments):
        result = await session.call_tool(name, arguments)
        assert not result.is_error, (name, result)
        return json.loads(result.content[0].text)

    async def refused(name, **arguments):
        assert (await session.call_tool(name, arguments)).is_error, (name, arguments)

    box = (await call("create_sandbox"))["sandbox_id"]
    ran = await call("shell", sandbox_id=box, command="echo one > f; cat f; exit 3")
    assert ran["output"] == "one\n" and ran["exit_code"] == 3, ran
    await call("execute_tool", sandbox_id=box, tool_name="file_write", params={"path": "g", "content": "two"})
    snapshot = (await call("sandbox_snapshot", sandbox_id=box, label="two"))["snapshot_id"]
    await call("upload_file", sandbox_id=box, path="/workspace/h", content_base64="AP8=")
    assert (await call("download_file", sandbox_id=box, path="/workspace/h"))["content_base64"] == "AP8="
    fork = (await call("fork_sandbox", sandbox_id=box))["sandbox_id"]
    listing = {"sandbox_id": box, "command": "ls"}
    assert (await call("shell", sandbox_id=fork, command="ls"))["output"] == "f\ng\nh\n"
    await call("restore_sandbox", sandbox_id=box, snapshot_id=snapshot)
    assert (await call("shell", **listing))["output"] == "f\ng\n"
    await call("reset_sandbox", sandbox_id=box)
    assert (await call("shell", **listing))["output"] == ""
    assert {known["sandbox_id"] for known in (await call("list_sandboxes"))["sandboxes"]} == {box, fork}

    def recorded(output):
        return {"steps": [{"tool_name": "shell", "params": {"command": "echo 1"}, "expected_output": output}], "metadata": {}}

    same = await call("replay_trajectory", sandbox_id=box, trajectory=recorded("1\n"))
    assert same["success"] and same["completed_steps"] == same["total_steps"] == 1, same
    other = await call("replay_trajectory", sandbox_id=box, trajectory=recorded("2\n"))
    assert not other["success"] and other["divergence_step"] == 1 and other["details"], other

    await call("destroy_sandbox", sandbox_id=fork)
    await refused("shell", sandbox_id=fork, command="ls")
    await refused("restore_sandbox", sandbox_id=box, snapshot_id="nonesuch")
    await refused("create_sandbox", repo_url="/etc", base_commit="main")
    await refused("create_sandbox", repo_url="https://host/x")
    await refused("create_sandbox", image="dir:/etc")
    await refused("nonesuch")


async def over_http(url):
    async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
        await tour(session)


async def main():
    if url := os.environ.get("MCP_URL"):
        return await over_http(url)
    home = {"GLASSHOUSE_HOME": os.environ["GLASSHOUSE_HOME"], "PATH": os.environ["PATH"]}
    parameters = StdioServerParameters(command=os.environ["GLASS"], args=["mcp"], env=home)
    async with stdio_client(parameters) as (reader, writer), ClientSession(reader, writer) as session:
        await tour(session)


asyncio.run(main())
