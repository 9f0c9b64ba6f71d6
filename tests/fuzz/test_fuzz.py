"""The campaign of hostile inputs tells every kind of defect, repeats its cases, and goes on where it was stopped."""

import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from quantmedic.cli.main import cli
from quantmedic.cli.values import OutputFile, OutputFolder

pytestmark = pytest.mark.thorough

pytest.importorskip("ai_edge_litert")
pytest.importorskip("PIL")
pytest.importorskip("safetensors")

CAMPAIGN = Path(__file__).with_name("campaign.py")
COLLECT = ["collect", "float.onnx", "int8.onnx", "-v", "mine:data", "--threads", "1", "-o", "out/x.case"]
#: What reads a file and is not tried, with the reason.
UNTRIED = {
    "cluster": "starts processes and opens connections, which a case must not",
    "mct_log": "TensorBoard is not installed for the tests; tests/mct reads real logs",
}
#: Folders and files that are only written.
WRITTEN = {"folder", "csv_file"}


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(CAMPAIGN), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound pair, as every case has it."""
    from builders.onnx_models import conv_net, images, qdq, save_pair  # slow to import

    folder = tmp_path_factory.mktemp("models")
    save_pair(folder, conv_net(), qdq(conv_net(), {"image": images()}))
    (folder / "quantized.onnx").rename(folder / "int8.onnx")
    return folder


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("while True: pass", "hang"),
        ("os.read(os.pipe()[0], 1)", "hang"),
        ("x = [b'x' * (1 << 20) for _ in range(3000)]", "memory"),
        ("open('stray.txt', 'w').close()", "file outside"),
        ("open(os.environ['HOME'] + '/stray', 'w').close()", "file outside"),
        ("os.mkdir('/var/quantmedic-fuzz')", "outside: os.mkdir /var/quantmedic-fuzz"),
        # below the guard of the standard streams, as what does not pass it would be written
        ("os.write(1, b'\\x1b]0;owned\\x07')", "raw"),
        ("os.write(1, b'::error::owned\\n')", "raw"),
        ("os._exit(7)", "exit code 7"),
    ],
)
def test_every_kind_of_defect_is_told(body: str, what: str, models: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """The command does here what a defect of quantmedic would make it do."""
    monkeypatch.setenv("QUANTMEDIC_FUZZ_SECONDS", "5")
    monkeypatch.setenv("QUANTMEDIC_FUZZ_IDLE_SECONDS", "5")
    kept = tmp_path / "kept"
    (kept / "case" / "out").mkdir(parents=True)
    (kept / "aside").mkdir()
    for name in ("float.onnx", "int8.onnx"):
        (kept / "case" / name).write_bytes((models / name).read_bytes())
    (kept / "case" / "mine.py").write_text(f"import os\n\n\ndef data():\n    {body}\n    raise ValueError\n")
    (kept / "aside" / "note").write_text(repr(COLLECT))
    done = run("--kept", kept)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, outcome["kind"]) == (1, "defect")
    assert outcome["what"].startswith(what)
    Path("/var/quantmedic-fuzz").rmdir() if Path("/var/quantmedic-fuzz").exists() else None


def test_a_case_repeats_and_a_campaign_goes_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    run("--cases", 4, "--seed", 7, "--log", first)
    run("--cases", 10, "--seed", 7, "--log", first, "--jobs", 2)
    run("--cases", 10, "--seed", 7, "--log", second)
    same = [
        {k: v for k, v in line.items() if k != "seconds"} for line in sorted(lines(first), key=lambda d: d["number"])
    ]
    assert [line["number"] for line in same] == list(range(10))
    assert same == [{k: v for k, v in line.items() if k != "seconds"} for line in lines(second)]


def test_seeds_are_sound_and_most_cases_come_past_the_first_check(tmp_path: Path) -> None:
    done = run("--cases", 200, "--seed", 5, "--log", tmp_path / "log.jsonl", "--jobs", 2)
    assert "a sound seed is refused" not in done.stdout
    found = lines(tmp_path / "log.jsonl")
    assert not [line for line in found if line["what"].startswith("the harness")]
    assert sum(line["deep"] for line in found) > len(found) / 2


def test_what_reads_a_file_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of each command, and each option of all of them, are given the hostile file somewhere."""
    monkeypatch.syspath_prepend(CAMPAIGN.parent)
    before = logging.root.manager.disable
    from seeds import make_seeds  # beside this file, and slow to import
    from targets import OWN, make_targets

    seeds = make_seeds()
    logging.disable(before)  # which the seeds of a campaign switch off
    rows = make_targets(seeds | dict.fromkeys(OWN[2], b"{}"))
    assert {seed for row in rows for seed in row.files.values()} <= {*seeds, *OWN[2]}
    tried, hostile = set(), set()
    for row in rows:
        for words in map(shlex.split, row.commands):
            command, path, context = parsed(words)
            tried.add(path)
            for parameter in command.params:
                given = context.params.get(parameter.name or "")
                if any(is_read(str(value), row.changed) for value in (given if isinstance(given, tuple) else [given])):
                    hostile.add(place_of(parameter, path))
    commands = dict(all_commands(cli, ()))
    assert tried == set(commands)
    wanted = {place_of(own, path) for path, command in commands.items() for own in command.params if reads(own)}
    assert wanted - hostile == UNTRIED.keys() | WRITTEN, "add a row to tests/fuzz/targets.py"


def all_commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Commands by their words; a group is one where it does something alone."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*path, name), command


def parsed(words: list[str]) -> tuple[click.Command, tuple[str, ...], click.Context]:
    """A command, its words, and its parameters as click reads them."""
    command: click.Command = cli
    at = 0
    while isinstance(command, click.Group) and at < len(words):
        if (inner := command.get_command(click.Context(command), words[at])) is None:
            break
        command, at = inner, at + 1
    context = command.make_context(words[at - 1], words[at:], resilient_parsing=True)
    return command, tuple(words[:at]), context


def place_of(parameter: click.Parameter, path: tuple[str, ...]) -> str:
    """Options mean the same in every command, arguments do not."""
    return f"{parameter.name}" if isinstance(parameter, click.Option) else " ".join((*path, parameter.name or ""))


def reads(parameter: click.Parameter) -> bool:
    """Whether it names what is read: by its type, or by what its help says of it."""
    if isinstance(parameter.type, OutputFile | OutputFolder):
        return False
    told = f"{getattr(parameter, 'metavar', '')} {getattr(parameter, 'help', '')}"
    return isinstance(parameter.type, click.Path) or bool(
        re.search(r"FILE|FOLDER|DATA|scheduler.json|module:function", told)
    )


def is_read(value: str, changed: str) -> bool:
    """Whether an option's value names the changed file: itself, its folder or its module."""
    name = value.rpartition("=")[2].removeprefix("@")
    return bool(changed) and (changed in (name, f"{name.partition(':')[0]}.py") or changed.startswith(f"{name}/"))
