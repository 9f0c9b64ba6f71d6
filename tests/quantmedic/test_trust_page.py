"""Each sentence of the page ``trust`` and a test that tries to break it."""

import ast
import contextlib
import json
import logging
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic
from builders.guard import guard_variables
from onnx import TensorProto, helper

import quantmedic
from quantmedic.collectors.from_onnx.onnx_file import load_model
from quantmedic.demo import patient
from quantmedic.engine.diagnosis.snippets import render_snippet
from quantmedic.engine.errors import DataError, QuantmedicError, RuleError
from quantmedic.engine.reading_limits import LIMITS, LOG_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "manuals" / "general" / "trust.md").read_text(encoding="utf-8")
#: Sentences by what they begin with, and where they are tried.
ELSEWHERE = {
    "Compiled code that was kept": "tests/engine/test_cache_folder.py",
    "TensorFlow's converter": "tests/collectors/test_tensorflow_files.py",
    "Extensions are code that you have installed": "tests/collectors/test_extensions.py",
    "Nothing in a report runs": "tests/browser/test_hostile.py",
    "A tokenizer runs in a process of its own": "tests/collectors/from_language_model/test_hostile_folders.py",
    "Nothing is measured for others": "tests/quantmedic/test_fresh_home.py",
    "Results do not depend on time": "tests/quantmedic/test_lying_clock.py",
}
TRIED: set[str] = set()

pytestmark = pytest.mark.thorough


def breaks(sentence: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test by the sentence that it tries to break."""
    TRIED.add(sentence)
    return lambda test: test


class Planted:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


def test_every_sentence_is_tried() -> None:
    said = PAGE[PAGE.index("## What is executed") : PAGE.index("The runtimes that read models")]
    assert set(re.findall(r"^\* \*\*(.+?)\*\*", said, re.MULTILINE)) == TRIED | ELSEWHERE.keys()
    assert all((ROOT / place).is_file() for place in ELSEWHERE.values())


@breaks("Functions that you name")
def test_a_policy_names_a_metric_and_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("import os\nos.mkdir('trace')\ndef metric(outputs, labels): return [0]\n")
    budget = '[[check.budget]]\nmetric = "evil:metric"\nmax_drop = 1.0\nunit = "absolute"\n'
    (tmp_path / "quantmedic.toml").write_text(budget)
    (float_model, quantized), data = patient()
    done = run_quantmedic(
        "check", float_model, quantized, "-v", data["validation"], "--samples", "32", "-o", "out", cwd=tmp_path
    )
    assert done.returncode in (1, 2, 3), done.stderr
    assert not (tmp_path / "trace").exists()


@breaks("Printed prescriptions")
def test_names_of_a_model_stay_text_in_what_is_run() -> None:
    for name in ('x"]; import os; os.mkdir("trace")  #', '"""\nimport os\n"""', "{model}", "a\\", "\n"):
        code = render_snippet("leave = {names}\nfirst = {value}", {"names": (name,), "value": name}, "test")
        found = [ast.literal_eval(each.value) for each in ast.parse(code).body if isinstance(each, ast.Assign)]
        assert len(ast.parse(code).body) == 2
        assert found[0] == [name]


@breaks("Pickles are not loaded")
@pytest.mark.parametrize("kind", ["data.npy", "data.npz", "case"])
def test_a_pickle_in_any_place_is_refused(kind: str, tmp_path: Path) -> None:
    trace, models = tmp_path / "trace", patient()[0]
    content = pickle.dumps(Planted(trace))
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    with pytest.raises(QuantmedicError):
        if kind == "data.npy":
            (tmp_path / kind).write_bytes(header + content)
            quantmedic.collect(*models, validation=tmp_path / kind)
        elif kind == "data.npz":
            with zipfile.ZipFile(tmp_path / kind, "w") as archive:
                archive.writestr("input.npy", header + content)
            quantmedic.collect(*models, validation=tmp_path / kind)
        else:
            quantmedic.save_case(quantmedic.collect_static(*models), tmp_path / "whole.case")
            with (
                zipfile.ZipFile(tmp_path / "whole.case") as whole,
                zipfile.ZipFile(tmp_path / "c.case", "w") as planted,
            ):
                for member in whole.namelist():
                    is_array = member.endswith(".npy")
                    planted.writestr(member, header + content if is_array else whole.read(member))
            quantmedic.load_case(tmp_path / "c.case")
    assert not trace.exists()


@breaks("Pickles are not loaded")
def test_a_pickle_of_a_toolchain_is_refused_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "inspect_result.pkl").write_bytes(pickle.dumps(Planted(tmp_path / "trace")))
    with pytest.raises(DataError, match="holds more than arrays"):
        quantmedic.import_files(tmp_path / "inspect_result.pkl")
    assert not (tmp_path / "trace").exists()


@breaks("Rules, thresholds, policies and baselines are data")
def test_a_message_of_a_rule_reads_facts_and_no_more(tmp_path: Path) -> None:
    rule = (ROOT / "rules" / "runtime" / "R001.yaml").read_text(encoding="utf-8")
    for message in (
        "{model.__class__.__mro__}",
        "{model.name.__class__}",
        "{model.name!r:>99999999}",
        "{model.name:>99999999}",
    ):
        (tmp_path / "S901.yaml").write_text(
            re.sub(r"^message:.*(\n[ ].*)*", f"message: {json.dumps(message)}", rule, flags=re.MULTILINE)
            .replace("R001", "S901")
            .replace("name: ", "name: my-", 1)
        )
        with pytest.raises(RuleError, match="S901"):
            quantmedic.load_rulebase([tmp_path])


@breaks("Rules, thresholds, policies and baselines are data")
def test_a_rule_makes_no_objects(tmp_path: Path) -> None:
    (tmp_path / "S901.yaml").write_text(f"id: !!python/object/apply:os.mkdir [{tmp_path / 'trace'}]\n")
    with pytest.raises(RuleError):
        quantmedic.load_rulebase([tmp_path])
    assert not (tmp_path / "trace").exists()


@breaks("Rules, thresholds, policies and baselines are data")
def test_a_regular_expression_that_never_ends_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "logs.yaml").write_text(r"- {pattern: '^(\w+\s?)+$', sets: {unreachable: true}}")
    (tmp_path / "x.log").write_text("word " * 300 + "!\n")
    (tmp_path / "quantmedic.toml").write_text('[rules]\nfolders = ["."]\n')
    (float_model, quantized), _ = patient()
    done = run_quantmedic(
        *("check", float_model, quantized, "--static", "--log", "x.log"),
        cwd=tmp_path,
        env={**os.environ, LOG_SECONDS.variable: "1"},
    )
    assert done.returncode == 2
    assert "the search of logs for patterns of your rules takes too many seconds" in done.stderr
    assert "QUANTMEDIC_MAX_LOG_SECONDS=2" in done.stderr and r"(\w+\s?)+$" in done.stderr


@breaks("External data of ONNX models")
def test_no_file_beside_the_folder_of_a_model_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "folder").symlink_to(tmp_path)
    for place in ("initializer", "sparse", "attribute"):
        for location in ("../secret.bin", "link.bin", "folder/secret.bin", str(tmp_path / "secret.bin")):
            save_with_external_data(folder / "m.onnx", place, location)
            with pytest.raises(QuantmedicError, match="outside the model's folder"):
                load_model(folder / "m.onnx")


def save_with_external_data(path: Path, place: str, location: str) -> None:
    """A model whose one constant lies in a file."""
    values = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    values.external_data.add(key="location", value=location)
    constant = helper.make_node("Constant", [], ["w"], value=values)
    nodes = [*([constant] if place == "attribute" else []), helper.make_node("Add", ["x", "w"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [values] if place == "initializer" else [])
    if place == "sparse":
        indices = helper.make_tensor("i", TensorProto.INT64, [3], [0, 1, 2])
        graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    path.write_bytes(helper.make_model(graph).SerializeToString())


@breaks("A model brings no code")
def test_no_library_of_operators_is_loaded() -> None:
    """The one call that loads such a library stands nowhere."""
    folders = ("collectors", "engine", "quantmedic", "reports", "trials")
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert texts
    assert not [text for text in texts if re.search(r"register_custom_ops|load_library|load_op_library", text)]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Commands":
    """Every command and front end, with the files that each reads."""
    for package in ("ai_edge_litert", "openvino", "PIL", "safetensors"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(ROOT / "tests" / "fuzz")
    before = logging.root.manager.disable
    from seeds import make_seeds  # beside the campaign of hostile inputs, and slow to import
    from target import own_seeds, write_all
    from targets import OWN, sound_commands

    seeds = make_seeds()
    seeds |= own_seeds(seeds, OWN)
    logging.disable(before)  # which the seeds of a campaign switch off
    return Commands(tmp_path, sound_commands(seeds), lambda files: write_all(files, seeds))


@dataclass(frozen=True)
class Commands:
    """Commands that are sound, and the place that each is to stay in."""

    top: Path
    rows: Sequence[tuple[Mapping[str, str], str]]
    write: Callable[[Any], None]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

    @property
    def folder(self) -> Path:
        return self.top / "work"

    @property
    def scratch(self) -> Path:
        return self.top / "tmp"

    @property
    def allowed(self) -> tuple[Path, ...]:
        return self.folder / "out", self.cache / "quantmedic", self.scratch

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.top / "home"), "XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.scratch)}
        return os.environ | own | {"PYTHONDONTWRITEBYTECODE": "1"}

    def place(self, files: Mapping[str, str]) -> None:
        """Begin anew, with the files of a command alone."""
        for place in (self.folder, self.scratch):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        with contextlib.chdir(self.folder):
            self.write(files)

    def check_nothing_is_left(self) -> None:
        assert not [path for path in self.scratch.rglob("*") if path.is_file()]
        assert not (self.top / "home").exists()


@pytest.mark.nightly
@breaks("No connection is opened")
@breaks("Files are written to the output, to the cache, and to the temporary directory while a run lasts.")
def test_every_command_stays_in_its_place(commands: Commands, subtests: pytest.Subtests) -> None:
    """The interpreter itself reports what it connects to, starts and changes, in child processes too."""
    notes = commands.top / "notes"
    environment = commands.environment | guard_variables(notes, *commands.allowed)
    for files, command in commands.rows:
        with subtests.test(command):
            commands.place(files)
            notes.write_text("")
            done = run_quantmedic(*shlex.split(command), cwd=commands.folder, env=environment)
            assert done.returncode != 2 and "Traceback" not in done.stderr, done.stderr
            assert notes.read_text() == ""
            commands.check_nothing_is_left()


#: Calls of the system that reach others, start programs or change files.
CALLS = (
    *("connect", "sendto", "execve", "open", "openat", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2"),
    *("unlink", "unlinkat", "rmdir", "link", "linkat", "symlink", "symlinkat", "truncate", "chmod", "fchmodat"),
)


@pytest.mark.nightly
def test_native_code_stays_in_its_place_too(commands: Commands, subtests: pytest.Subtests) -> None:
    """One command of each front end, whose calls of the system are traced: libraries do not ask the interpreter."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace on PATH")
    first = {tuple(files): (files, command) for files, command in reversed(commands.rows)}
    log = commands.top / "calls"
    for files, command in first.values():
        with subtests.test(command):
            commands.place(files)
            traced = [strace, "-f", "-qq", "-y", "-s", "4096", "-e", f"trace={','.join(CALLS)}", "-o", log]
            words = [*map(str, traced), sys.executable, "-P", "-m", "quantmedic", *shlex.split(command)]
            done = subprocess.run(
                words, cwd=commands.folder, env=commands.environment, capture_output=True, text=True, check=False
            )
            assert done.returncode != 2, done.stderr
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            assert [line for line in lines if leaves(line, commands.folder, ())], "the trace sees what is written"
            places = tuple(f"{place}/" for place in (*commands.allowed, "/dev", "/proc"))
            assert not [line for line in lines if leaves(line, commands.folder, places)]
            commands.check_nothing_is_left()


def leaves(line: str, folder: Path, places: tuple[str, ...]) -> bool:
    """Whether a traced call that was carried out reaches others, starts another program, or changes files elsewhere."""
    call = re.match(r"\d+ +(\w+)\(", line)
    if call is None or " = -1 " in line:
        return False
    if call[1] in ("connect", "sendto"):
        return "AF_INET" in line
    if call[1] == "execve":
        return f'execve("{sys.executable}"' not in line
    if call[1] in ("open", "openat"):
        opened = line.rpartition("<")[2].removesuffix(">")
        return bool(re.search(r"O_(WRONLY|RDWR|CREAT)", line)) and not f"{opened}/".startswith(places)
    named = re.findall(r'(?:<([^>]*)>, )?"([^"]*)"', line)
    return not all(f"{folder / beside / path}/".startswith(places) for beside, path in named)


def test_the_guard_sees_what_a_run_must_not_do(tmp_path: Path) -> None:
    """A guard that sees nothing would pass everything."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "victim")
    for body, noted in {
        "import socket; socket.socket().connect_ex(('127.0.0.1', 9))": "socket.connect",
        "import socket; socket.getaddrinfo('localhost', 9)": "socket.getaddrinfo",
        "import subprocess; subprocess.run(['true'])": "subprocess.Popen",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'open(\"x\", \"w\")'])": f"open {tmp_path}/x",
        "open('out/link', 'w')": f"open {tmp_path}/victim",
        "import os; os.mkdir('y')": f"os.mkdir {tmp_path}/y",
        "import os; os.mkdir('z', dir_fd=os.open('.', os.O_RDONLY))": f"os.mkdir {tmp_path}/z",
        "open('out/fine', 'w'); open('out/fine')": "",
    }.items():
        (tmp_path / "notes").unlink(missing_ok=True)
        environment = os.environ | guard_variables(tmp_path / "notes", tmp_path / "out")
        subprocess.run([sys.executable, "-c", body], cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert (tmp_path / "notes").read_text().startswith(noted) and bool(noted) == bool(
            (tmp_path / "notes").read_text()
        ), body


def limits_table() -> str:
    """All limits in one table."""
    lines = ["| what | at most | raised or lowered by |", "|---|--:|---|"]
    for limit in LIMITS:
        option = f"`{limit.option}`, " if limit.option else ""
        lines.append(f"| {limit.what.rstrip(',')} | {limit.amount(limit.most)} | {option}`{limit.variable}` |")
    return "\n".join(lines)


def test_the_limits_on_the_page_are_those_in_force() -> None:
    """Else paste what this test wants to find."""
    assert limits_table() in PAGE


def test_security_names_the_page() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "quantmedic explain trust" in text
    for path in re.findall(r"`([\w/]+\.\w+)`", text):
        assert (ROOT / path).exists(), path
