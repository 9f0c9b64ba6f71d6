"""The campaign of hostile inputs tells every kind of defect, repeats its cases, and goes on where it was stopped."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

pytest.importorskip("ai_edge_litert")
pytest.importorskip("PIL")
pytest.importorskip("safetensors")

CAMPAIGN = Path(__file__).with_name("campaign.py")
COLLECT = ["collect", "float.onnx", "int8.onnx", "-v", "mine:data", "--threads", "1", "-o", "out/x.case"]


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
    run("--cases", 12, "--seed", 7, "--log", first)
    run("--cases", 30, "--seed", 7, "--log", first, "--jobs", 2)
    run("--cases", 30, "--seed", 7, "--log", second)
    same = [
        {k: v for k, v in line.items() if k != "seconds"} for line in sorted(lines(first), key=lambda d: d["number"])
    ]
    assert [line["number"] for line in same] == list(range(30))
    assert same == [{k: v for k, v in line.items() if k != "seconds"} for line in lines(second)]


def test_seeds_are_sound_and_most_cases_come_past_the_first_check(tmp_path: Path) -> None:
    done = run("--cases", 200, "--seed", 5, "--log", tmp_path / "log.jsonl", "--jobs", 2)
    assert "a sound seed is refused" not in done.stdout
    found = lines(tmp_path / "log.jsonl")
    assert not [line for line in found if line["what"].startswith("the harness")]
    assert sum(line["deep"] for line in found) > len(found) / 2
