"""Code that is remembered: what the code interpreter of OpenSandbox can, as its own package does it."""

import asyncio
import os
from datetime import timedelta

from code_interpreter import CodeInterpreter, SupportedLanguage
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxException
from opensandbox.models.execd import ExecutionHandlers


def lines(execution):
    return [line.text for line in execution.logs.stdout]


async def refused(waited):
    try:
        await waited
    except SandboxException as error:
        return error
    raise AssertionError("that was not refused")


async def readme(codes):
    """What the README of OpenSandbox shows, indented as it is there."""
    result = await codes.run(
        """
            import sys
            print(sys.version)
            result = 2 + 2
            result
        """,
        language=SupportedLanguage.PYTHON,
    )
    assert result.result[0].text == "4", result
    assert lines(result)[0].startswith("3."), result
    assert result.error is None and result.complete is not None, result


async def python(codes):
    context = await codes.create_context(SupportedLanguage.PYTHON)
    assert context.language == "python" and context.id, context
    await codes.run("x = 41", context=context)
    seen = []

    async def on_stdout(line):
        seen.append(line.text)

    handlers = ExecutionHandlers(on_stdout=on_stdout)
    answer = await codes.run("print('out'); x + 1", context=context, handlers=handlers)
    assert seen == ["out"] and answer.result[0].text == "42", answer
    assert answer.id == context.id, answer
    # Contexts are apart from each other.
    other = await codes.create_context(SupportedLanguage.PYTHON)
    failed = await codes.run("x", context=other)
    assert failed.error.name == "NameError" and failed.complete is None, failed
    assert any("x" in line for line in failed.error.traceback), failed
    # As Jupyter shows it.
    shown = await codes.run(
        "class Table:\n def _repr_html_(self): return '<b>1</b>'\n def __repr__(self): return 'one'\nTable()",
        context=other,
    )
    assert shown.result[0].text == "one", shown
    # What runs is interrupted; the context lives on.
    begun = asyncio.Event()

    async def on_begun(_):
        begun.set()

    endless = asyncio.create_task(
        codes.run(
            "print('begun', flush=True)\nwhile True: pass",
            context=context,
            handlers=ExecutionHandlers(on_stdout=on_begun),
        )
    )
    await begun.wait()
    await refused(codes.run("1", context=context))
    await codes.interrupt(context.id)
    assert (await endless).error.name == "KeyboardInterrupt"
    assert (await codes.run("x", context=context)).result[0].text == "41"
    found = {known.id for known in await codes.list_contexts("python")}
    assert {context.id, other.id} <= found, found
    assert (await codes.get_context(other.id)).language == "python"
    # One that is lost says so, whatever its interpreter ended with.
    lost = await codes.run("import os; os._exit(0)", context=other)
    assert (lost.error.name, lost.error.value) == ("ContextLost", "its interpreter ended with code 0"), lost
    await codes.delete_context(other.id)
    await refused(codes.get_context(other.id))
    await codes.delete_contexts("python")
    assert await codes.list_contexts("python") == []


async def languages(codes):
    bash = await codes.create_context(SupportedLanguage.BASH)
    await codes.run("name=world; cd /", context=bash)
    assert lines(await codes.run('echo "hello $name in $PWD"', context=bash)) == ["hello world in /"]
    script = await codes.create_context(SupportedLanguage.JAVASCRIPT)
    await codes.run("let n = 20", context=script)
    answer = await codes.run("console.log('js'); await Promise.resolve(n * 2 + 2)", context=script)
    assert lines(answer) == ["js"] and answer.result[0].text == "42", answer
    thrown = await codes.run("throw new TypeError('no')", context=script)
    assert (thrown.error.name, thrown.error.value) == ("TypeError", "no"), thrown
    await refused(codes.create_context("cobol"))


async def main():
    config = ConnectionConfig(use_server_proxy=bool(os.environ.get("THROUGH_PROXY")))
    sandbox = await Sandbox.create("host", timeout=timedelta(minutes=10), connection_config=config)
    async with sandbox:
        codes = (await CodeInterpreter.create(sandbox)).codes
        await readme(codes)
        await python(codes)
        await languages(codes)
        await sandbox.kill()


asyncio.run(main())
