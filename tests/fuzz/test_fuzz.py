"""The campaign of hostile inputs tells every kind of defect, repeats its cases, and goes on where it was stopped."""

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from quantmedic.cli.main import cli
from quantmedic.cli.values import Output

pytestmark = pytest.mark.thorough

pytest.importorskip("ai_edge_litert")
pytest.importorskip("openvino")
pytest.importorskip("PIL")
pytest.importorskip("safetensors")

CAMPAIGN = Path(__file__).with_name("campaign.py")
COLLECT = ["collect", "float.onnx", "int8.onnx", "-v", "mine:data", "--threads", "1", "-o", "out/x.case"]
#: What reads a file and is not tried, with the reason.
UNTRIED = {
    "cluster": "starts processes and opens connections, which a case must not",
}
#: Folders and files that are only written.
WRITTEN = {"csv_file"}


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


#: What the function of the data does, as a defect of quantmedic would, and how that is told.
DEFECTS = [
    ("open('stray.txt', 'w').close()", "outside: open "),
    ("open(os.environ['HOME'] + '/stray', 'w').close()", "file outside"),
    ("os.mkdir('/var/quantmedic-fuzz')", "outside: os.mkdir /var/quantmedic-fuzz"),
    # below the guard of the standard streams, as what does not pass it would be written
    ("os.write(1, b'\\x1b]0;owned\\x07')", "raw"),
    ("os.write(1, b'::error::owned\\n')", "raw"),
    ("os._exit(7)", "exit code 7"),
    ("os.kill(os.getpid(), 11)", "signal 11"),
]
#: The same of what uses up memory, and of what never ends.
LARGE = [("x = b'x' * (3 << 30)", "memory")]
ENDLESS = [("while True: pass", "hang"), ("os.read(os.pipe()[0], 1)", "hang")]


@pytest.mark.nightly
def test_every_kind_of_defect_is_told(models: Path, tmp_path: Path) -> None:
    tell_defects(DEFECTS, models, tmp_path)
    shutil.rmtree("/var/quantmedic-fuzz", ignore_errors=True)


@pytest.mark.nightly
def test_what_takes_too_much_is_told(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_defects(LARGE, models, tmp_path / "large")  # within the usual limit: a busy machine fills memory slowly
    monkeypatch.setenv("QUANTMEDIC_FUZZ_IDLE_SECONDS", "5")
    monkeypatch.setenv("QUANTMEDIC_FUZZ_CPU_SECONDS", "5")
    tell_defects(ENDLESS, models, tmp_path / "endless")


def tell_defects(defects: list[tuple[str, str]], models: Path, folder: Path) -> None:
    """Each is kept as a campaign keeps its defects, and run again."""
    for number, (body, _) in enumerate(defects):
        case, aside = folder / str(number) / "case", folder / str(number) / "aside"
        (case / "out").mkdir(parents=True)
        aside.mkdir()
        for name in ("float.onnx", "int8.onnx"):
            (case / name).write_bytes((models / name).read_bytes())
        (case / "mine.py").write_text(f"import os\n\n\ndef data():\n    {body}\n    raise ValueError\n")
        (aside / "note").write_text(repr(COLLECT))
    done = run("--kept", *(folder / str(number) for number in range(len(defects))))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"kind"')]
    assert done.returncode == 1
    for outcome, (body, what) in zip(found, defects, strict=True):
        assert outcome["kind"] == "defect" and outcome["what"].startswith(what), body


@pytest.mark.nightly
def test_each_reader_stands_one_hostile_file(tmp_path: Path) -> None:
    """Nothing crashes, hangs, writes elsewhere or says what a terminal would obey; most get past the first check."""
    done = run("--each", "--seed", 7, "--log", tmp_path / "log.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    formats = {line["format"] for line in lines(tmp_path / "log.jsonl")}
    assert formats >= {"ONNX", "LiteRT", "torch", "npz", "dumps", "case", "policy", "safetensors", "GGUF", "importers"}


@pytest.mark.nightly
def test_a_campaign_goes_on_and_its_cases_repeat(tmp_path: Path) -> None:
    """The log was cut off in the middle: what is missing is done, and gives what it gave."""
    log = tmp_path / "log.jsonl"
    run("--cases", 6, "--seed", 7, "--log", log, "--jobs", 2)
    before = known(log)
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:3]))
    run("--cases", 6, "--seed", 7, "--log", log)
    assert [line["number"] for line in before] == list(range(6))
    assert known(log) == before


def known(log: Path) -> list[dict[str, Any]]:
    """The lines of a log by number, without how long they took."""
    rows = [{k: v for k, v in line.items() if k != "seconds"} for line in lines(log)]
    return sorted(rows, key=lambda row: row["number"])


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
    if isinstance(parameter.type, Output):
        return False
    told = f"{getattr(parameter, 'metavar', '')} {getattr(parameter, 'help', '')}"
    return isinstance(parameter.type, click.Path) or bool(
        re.search(r"FILE|FOLDER|DATA|scheduler.json|module:function", told)
    )


def is_read(value: str, changed: str) -> bool:
    """Whether an option's value names the changed file: itself, its folder or its module."""
    name = value.rpartition("=")[2].removeprefix("@")
    return bool(changed) and (changed in (name, f"{name.partition(':')[0]}.py") or changed.startswith(f"{name}/"))
