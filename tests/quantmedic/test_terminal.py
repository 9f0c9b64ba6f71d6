"""Nothing that a file, a function or an option says reaches a terminal or a log of continuous integration raw."""

import csv
import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
from builders.attacks import ATTACKS, attacked, raw_places
from builders.commands import run_quantmedic
from builders.tiers import others_nightly

import quantmedic
from quantmedic.cli.main import main
from quantmedic.cli.streams import GuardedStream, guarded_streams, print_line, print_report
from quantmedic.demo import patient
from quantmedic.engine.errors import QuantmedicError
from quantmedic.reports.terminal.lines import paint_style

#: As an argument, which holds no NUL, and as the name of a file.
ARGUMENTS = [attack.replace("\0", "").encode("utf-8", "surrogateescape" if "\ud800" not in attack else "replace")
             .decode("utf-8", "surrogateescape") for attack in ATTACKS]  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says that it is a terminal: colours are on."""

    def isatty(self) -> bool:
        return True


def said(*words: object, terminal: bool = False) -> tuple[object, str]:
    """Exit code of a command, and all that it prints."""
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code, out.getvalue() + err.getvalue()


def refused(*words: object) -> str:
    """What a command says that cannot do its job."""
    code, text = said(*words)
    assert code == 2 and text, text
    assert not raw_places(text)
    assert "internal error" not in text
    return text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "NO_COLOR", "QUANTMEDIC_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def hostile_case(patient_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A case all of whose names attack."""
    case = quantmedic.load_case(patient_case)
    case.record = attacked(case.record)
    quantmedic.save_case(case, path := tmp_path_factory.mktemp("hostile") / "hostile.case")
    return path


OUTPUTS = (
    "diagnose CASE --output report --verbose",
    "check CASE --verbose",
    "show CASE --table all",
    "show CASE --layer 1",
    "show CASE --table loss-budget --csv -",
    "compare OTHER CASE",
)
MORE_OUTPUTS = (
    "check CASE --format json",
    "check CASE --format markdown",
    "check CASE --format junit",
    "check CASE --format sarif",
    "show CASE --table data-sets",
    "show CASE --table loss-budget",
    "show CASE --table all --csv -",
    "show CASE --layer none",
    "check CASE --write-baseline known.json",
    "check CASE --baseline quantmedic-baseline.json --verbose",
    "check CASE --baseline OTHER --verbose",
    "compare CASE CASE",
    "diagnose CASE --output report --previous OTHER",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "terminal, lines", others_nightly([(True, OUTPUTS), (True, MORE_OUTPUTS), (False, OUTPUTS + MORE_OUTPUTS)])
)
def test_no_output_on_a_hostile_case_is_raw(
    here: Path, hostile_case: Path, patient_case: Path, terminal: bool, lines: Sequence[str]
) -> None:
    places = {"CASE": str(hostile_case), "OTHER": str(patient_case)}
    for line in lines:
        words = [places.get(word, word) for word in line.split()]
        code, text = said(*words, terminal=terminal)
        assert "internal error" not in text and (code in (0, 1) or "error: " in text), line
        colored = "".join(text.split("\x1b[0m"))
        for style in ("bold", "dim", "degraded", "not-comparable", "healthy", "high", "medium", "help"):
            colored = colored.replace(paint_style("|", style).partition("|")[0], "")
        assert not raw_places(colored if terminal else text), line


@pytest.mark.thorough
def test_annotations_are_the_only_commands_of_workflows(
    here: Path, hostile_case: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _, text = said("check", hostile_case)
    commands = [line for line in text.split("\n") if line.startswith("::")]
    assert commands and all(line.isprintable() for line in commands)
    assert all(line.startswith(("::error file=", "::warning file=", "::notice file=")) for line in commands)
    assert not raw_places("\n".join(line for line in text.split("\n") if line not in commands))


@pytest.mark.thorough
def test_no_cell_of_a_table_is_a_formula(here: Path, hostile_case: Path) -> None:
    for table in ("--table all", "--table loss-budget"):
        _, text = said("show", hostile_case, *table.split(), "--csv", "-")
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        texts = [cell for cell in cells if not re.fullmatch(r"-?[\d.]+(e[-+]\d+)?|-?inf|nan|", cell)]
        assert texts and not [cell for cell in texts if cell.lstrip().startswith(("=", "+", "-", "@", "|", "%"))]


def test_a_cell_of_a_table_begins_no_formula() -> None:
    from quantmedic.reports.text import spreadsheet_text

    for attack in ATTACKS:
        assert not spreadsheet_text(attack).lstrip().startswith(("=", "+", "-", "@", "|"))


# Messages


@pytest.mark.nightly
def test_options_and_file_names_are_not_raw_in_errors(here: Path) -> None:
    """Each command gets attacks of every kind, and each attack some commands."""
    commands: list[Callable[[str], Sequence[str]]] = [
        lambda attack: ("diagnose", attack),
        lambda attack: ("check", attack, attack),
        lambda attack: ("check", "none.case", "--config", attack),
        lambda attack: (f"x{attack}",),
        lambda attack: ("explain", f"--x{attack}"),
        lambda attack: ("diagnose", "none.case", "--select", f"X{attack}"),
        lambda attack: ("explain", "--list", "thresholds", "--threshold", f"{attack}=1"),
        lambda attack: ("explain", "--list", "thresholds", "--threshold", attack),
        lambda attack: ("explain", f"zq{attack}"),
        lambda attack: ("explain", "--test-rules", attack),
        lambda attack: ("explain", "--new-rule", f"-{attack}"),
        lambda attack: ("import", f"none{attack}"),
        lambda attack: ("diagnose", f"none{attack}", f"none{attack}", "--weights-only"),
        lambda attack: ("check", "none.case", "--today", attack),
        lambda attack: ("diagnose", f"none{attack}", f"none{attack}", "--budget", f"x{attack}"),
    ]
    for number, command in enumerate(commands):
        for attack in ARGUMENTS[number % 4 :: 4]:
            refused(*command(attack))


@pytest.mark.thorough
def test_texts_of_files_are_not_raw_in_errors(here: Path) -> None:
    for attack in ATTACKS:
        refuse_files(here, attack)


def refuse_files(here: Path, attack: str) -> None:
    quoted = json.dumps(attack)
    (here / "deep.yaml").write_text(f"{quoted}: 1\n")
    refused("explain", "--list", "thresholds", "--threshold", "deep.yaml")
    (here / "list.yaml").write_text(f"- {quoted}\n")
    refused("explain", "--list", "thresholds", "--threshold", "list.yaml")
    (here / "baseline.json").write_text(json.dumps({attack: [{attack: attack}], "findings": [{"rule": attack}]}))
    refused("check", "none.case", "--prune-baseline", "--baseline", "baseline.json")
    (here / "settings.json").write_text(json.dumps({attack: {attack: attack}}))
    refused("import", "settings.json")
    (here / "text.log").write_text(attack, encoding="utf-8", errors="replace")
    refused("import", "text.log")
    if attack.isascii():  # TOML has escapes of its own
        (here / "quantmedic.toml").write_text(f"{quoted} = {quoted}\n")
        refused("check", "none.case")
        (here / "quantmedic.toml").unlink()


@pytest.mark.nightly
def test_rules_of_the_user_are_not_raw(here: Path) -> None:
    fields = [(attack, ("id", "name", "message")[number % 3]) for number, attack in enumerate(ATTACKS)]
    for number, (attack, field) in enumerate(fields):
        assert said("explain", "--new-rule", f"own-{number}-{field}", "--output", "own")[0] == 0
        rule = next(path for path in (here / "own").glob("**/U*.yaml") if f"own-{number}-{field}" in path.read_text())
        harmed, found = re.subn(
            rf"(?m)^{field}: .*", lambda _, f=field, a=attack: f"{f}: {json.dumps(a)}", rule.read_text()
        )
        assert found == 1
        rule.write_text(harmed)
    _, shown = said("explain", "--test-rules", "own")
    assert not raw_places(shown) and "internal error" not in shown, shown
    spoken_of = {*re.findall(r"U\d+", shown)}
    assert {f"U{number:03}" for number in range(1, len(fields) + 1)} <= spoken_of
    assert said("explain", "--new-rule", "wide-input-range", "--output", "sound")[0] == 0
    page = next((here / "sound").glob("**/U*.md"))
    page.write_text("\n".join([page.read_text(), *ATTACKS, ""]), encoding="utf-8", errors="replace")
    _, shown = said("explain", "wide-input-range", "--rules", "sound")
    assert shown and not raw_places(shown)


@pytest.mark.thorough
def test_exceptions_of_functions_of_the_user_are_not_raw(here: Path) -> None:
    (here / "raising.py").write_text(
        "import sys, warnings, logging\n"
        f"ATTACKS = {ATTACKS!r}\n"
        "def load():\n"
        "    for attack in ATTACKS:\n"
        "        print(attack)\n"
        "        print(attack, file=sys.stderr)\n"
        "        warnings.warn(attack)\n"
        "        logging.warning(attack)\n"
        "    raise ValueError(''.join(ATTACKS) + '\\n'.join(ATTACKS))\n"
    )
    (float_model, quantized), _ = patient()
    # In a process of its own, since pytest keeps warnings and logs for itself.
    words = ("diagnose", float_model, quantized, "--validation", "raising:load", "--output", "out")
    done = run_quantmedic(*words, cwd=here)
    assert done.returncode == 2 and "raising:load" in done.stderr and "UserWarning" in done.stderr
    assert "owned" in done.stdout and not raw_places(done.stdout) and not raw_places(done.stderr)


# The streams themselves


@contextmanager
def guarded() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), guarded_streams():
        yield out, err


def test_what_libraries_print_passes_the_guard() -> None:
    for attack in ATTACKS:
        assert_guarded(attack)


def assert_guarded(attack: str) -> None:
    with guarded() as streams:
        print(attack)
        print("said", attack, file=sys.stderr)
        sys.stdout.write(f" \n{attack}")
        # pytest keeps warnings for itself, and cannot hand on one that holds half of a surrogate pair.
        sys.stderr.write(warnings.formatwarning(attack, UserWarning, "file.py", 1))
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": attack.replace("%", "%%")}))
        print_line(attack)
    for stream in streams:
        assert stream.getvalue() and not raw_places(stream.getvalue())


def test_a_line_that_comes_in_parts_is_no_command() -> None:
    with guarded() as (out, _):
        print("  ", end="")
        print("::error::owned")
        print("a", end="")
        print("::b")
    assert out.getvalue() == "  \\u003a:error::owned\na::b\n"


def test_bars_of_functions_of_the_user_are_drawn() -> None:
    with guarded() as (_, err):
        sys.stderr.write("\r 10%|█ \r hidden")
    assert err.getvalue() == "\r 10%|█ \\u000d hidden"


def test_only_our_colours_reach_a_report() -> None:
    with guarded() as (out, _):
        print_report(f"{paint_style('bad', 'high')} \x1b[5mblink \x1b[8mgone\n")
    assert out.getvalue() == "\x1b[31mbad\x1b[0m \\u001b[5mblink \\u001b[8mgone\n"


def test_an_error_is_not_raw_in_python_either() -> None:
    for attack in ATTACKS:
        assert not raw_places(str(QuantmedicError(attack, where=[attack, attack], help=attack)))


def test_what_cannot_be_encoded_is_escaped() -> None:
    raw = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = GuardedStream(raw)
    stream.write("層\n")
    assert raw.buffer.getvalue() == b"\\u5c64\n"  # type: ignore[attr-defined]


STAGES = """
from quantmedic.cli.terminal import progress_bars

with progress_bars() as show:
    for done in (1, 2):
        show("search", done, 10)
    show("writing", 1, 1)
"""


def test_a_stage_that_needed_fewer_steps_ends_full() -> None:
    """On a terminal: two of ten steps, and the next stage begins."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", STAGES], stdout=follower, stderr=follower, stdin=follower)
    os.close(follower)
    shown = b""
    # What a terminal whose other end was closed says at its end differs between systems.
    with suppress(OSError):
        while more := os.read(leader, 4096):
            shown += more
    assert process.wait(60) == 0
    os.close(leader)
    drawn = re.findall(rb"search +\S*[^/]*?(\d+)/(\d+)", shown)
    assert drawn[-1] == (b"2", b"2"), shown
