"""``quantmedic mcp``: what a coding agent gets, over the real process, by the client of the package."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from builders.commands import run_quantmedic

from quantmedic.demo import patient

pytestmark = pytest.mark.thorough

DEMO = Path(str(patient()[0][0])).parent
PIXELS = ["scale=255", "validation.mean=0.286", "validation.std=0.353", "representative.mean=0", "representative.std=1"]
PAIR = {"float_model": "float.onnx", "quantized_model": "int8.onnx"}
DATA = {"representative": "representative.npz", "validation": "validation.npz", "preprocessing": PIXELS, "samples": 128}
SERVER = ["-m", "quantmedic", "mcp"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    own = tmp_path / "own"
    own.mkdir()
    for name in ("float.onnx", "int8.onnx", "representative.npz", "validation.npz"):
        shutil.copy(DEMO / name, own)
    for module in ("numpy", "mcp"):
        (own / f"{module}.py").write_text("raise SystemExit('a file of the folder is run')")
    return own


def talk(folder: Path, ask: Callable[[Any], Awaitable[None]]) -> None:
    """Start the server in a folder, and ask it."""
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    async def run() -> None:
        server = StdioServerParameters(command=sys.executable, args=SERVER, env=dict(os.environ), cwd=folder)
        async with Client(stdio_client(server)) as client:
            await ask(client)

    anyio.run(run)


def test_two_calls_at_once_diagnose_and_heal_the_demo(folder: Path) -> None:
    import anyio

    answers: dict[str, Any] = {}
    told: list[str] = []

    async def ask(client: Any) -> None:
        async def call(tool: str, **own: object) -> None:
            answers[tool] = await client.call_tool(tool, {**PAIR, **DATA, **own}, progress_callback=hear)

        async def hear(done: float, total: float | None, message: str | None) -> None:
            told.append(message or "")

        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["diagnose", "check", "fix", "search", "explain"]
        assert all(tool.description and tool.input_schema["additionalProperties"] is False for tool in tools)
        async with anyio.create_task_group() as both:
            both.start_soon(lambda: call("diagnose"))
            both.start_soon(lambda: call("fix", output="fixed.onnx"))
        (report, *_) = answers["diagnose"].structured_content["resources"]
        assert report in [own.uri for own in (await client.list_resources()).resources]
        (page,) = (await client.read_resource(report)).contents
        assert page.text.startswith("# DEGRADED: int8.onnx") and page.mime_type == "text/markdown"

    talk(folder, ask)
    found, fixed = (answers[tool].structured_content for tool in ("diagnose", "fix"))
    assert json.loads(answers["diagnose"].content[0].text) == found
    assert found["verdict"] == "degraded" and found["drop_is"] == "proven"
    assert found["metric"]["drop"] > 0.5 and found["metric"]["samples"] == 128
    assert found["first_cause"]["rules"] == ["D005"] and found["first_cause"]["evidence"]
    assert found["do_first"]["what"] == "Prepare both data sets with one function"
    assert len(found["not_judged"]) and "device_outputs" in " ".join(found["not_judged"])
    assert all((folder / file).is_file() for file in found["files"])
    assert fixed["written"] == "fixed.onnx" and (folder / "fixed.onnx").is_file() and fixed["how"] == "executed"
    assert (fixed["before"]["verdict"], fixed["after"]["verdict"]) == ("degraded", "healthy")
    assert any(line.startswith("validation ") for line in told)


def test_nothing_outside_of_the_folder_is_read_or_written(folder: Path) -> None:
    outside = folder.parent / "outside"
    shutil.copytree(folder, outside)
    before = sorted(path.name for path in outside.iterdir())
    (folder / "linked.onnx").symlink_to(outside / "float.onnx")
    (folder / "images").mkdir()
    (folder / "images" / "linked.npy").symlink_to(outside / "validation.npz")
    (folder / "~").mkdir()
    (folder / "beyond").symlink_to(outside)
    wrong = {
        "leads out of the folder": [
            {"float_model": "../outside/float.onnx"},
            {"float_model": str(outside / "float.onnx")},
            {"float_model": "linked.onnx"},
            {"float_model": "~"},
            {**PAIR, "report": "beyond"},
            {**PAIR, "report": "images/../../outside"},
        ],
        "'images/linked.npy' is a link out": [{**PAIR, "validation": "images"}],
        "there is no 'missing.onnx'": [{"float_model": "missing.onnx"}],
        "functions (module:function) are not run": [{**PAIR, "validation": "a:b"}, {**PAIR, "metric": "a:b"}],
        "Extra inputs are not permitted": [{**PAIR, "rules": "images"}],
    }

    async def ask(client: Any) -> None:
        for said, calls in wrong.items():
            for given in calls:
                answer = await client.call_tool("diagnose", given)
                assert answer.is_error and said in answer.content[0].text, given
        answer = await client.call_tool("fix", {**PAIR, "output": "notes.txt"})
        assert answer.is_error and "output" in answer.content[0].text
        with pytest.raises(Exception, match="leads out of the folder"):
            await client.read_resource("quantmedic://report/beyond")

    talk(folder, ask)
    assert sorted(path.name for path in outside.iterdir()) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_cancelled_call_ends_its_process_and_the_server_goes_on(folder: Path) -> None:
    import anyio

    async def ask(client: Any) -> None:
        async def stop(*_: object) -> None:
            assert len(workers(folder)) == 1
            scope.cancel()

        with anyio.CancelScope() as scope:
            await client.call_tool("diagnose", {**PAIR, **DATA, "prove": True}, progress_callback=stop)
        assert scope.cancelled_caught
        with anyio.fail_after(20):
            while workers(folder):
                await anyio.sleep(0.05)
        assert len((await client.list_tools()).tools) == 5

    talk(folder, ask)
    assert not (folder / "report").exists()


def workers(folder: Path) -> list[str]:
    """Processes that do calls in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"quantmedic.mcp.work" in (process / "cmdline").read_bytes() and (process / "cwd").readlink() == folder:
                found.append(process.name)
        except OSError:  # it has ended
            continue
    return found


def test_standard_output_is_the_protocol_alone_and_its_end_ends_the_server(folder: Path) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "explain", "arguments": {"word": "D005"}}},
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    with subprocess.Popen([sys.executable, *SERVER], cwd=folder, **pipes) as server:
        for each in asked:
            print(json.dumps({"jsonrpc": "2.0", **each}), file=server.stdin, flush=True)
        first, second = (json.loads(server.stdout.readline()) for _ in range(2))
        assert first["result"]["serverInfo"]["name"] == "quantmedic"
        assert second["result"]["structuredContent"]["page"].startswith("# preprocessing-scale-mismatch")
        rest, _ = server.communicate(timeout=30)
    assert rest == "" and server.returncode == 0


def test_without_the_package_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp']; from quantmedic.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2 and done.stdout == ""
    assert "help: pip install 'quantmedic[mcp]'" in done.stderr


def test_the_skill_is_printed() -> None:
    done = run_quantmedic("mcp", "--skill")
    assert done.returncode == 0 and done.stdout.startswith("---\nname: quantmedic\n")
    assert len(done.stdout.splitlines()) < 80
