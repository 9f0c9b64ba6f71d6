"""Logs of toolchains: read as text, bounded, and only for words that the rule base knows."""

import math
import re

import pytest
from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic
from quantmedic.api.rulebase import known_and_own_patterns
from quantmedic.collectors.toolchain_files.toolchain_log import MAX_BYTES, read_log_facts, read_logs
from quantmedic.engine.errors import DataError, RuleError
from quantmedic.engine.reading_limits import LOG_SECONDS, LimitError
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.log_patterns import LogPattern

BASE = quantmedic.load_rulebase()
UNREACHABLE = {
    "ValueError: The model cannot be quantized to meet the specified target resource utilization weights_memory "
    "with the value 12000.0.": ("Sony MCT", "weights_memory", 12000.0),
    "ValueError: The model cannot be quantized to meet the specified resource utilization for the following targets: "
    "{'bops': 1e6}": ("Sony MCT", "bops", 1e6),
    "AssertionError: No solution was found during solving the LP problem": ("Sony MCT", None, None),
    "[ERROR] Specified timeout is reached! Not found any quantized model which meet accuracy goal. Exit.": (
        "Intel Neural Compressor",
        "accuracy",
        None,
    ),
    "INFO:nncf:The algorithm could not achieve the required accuracy drop.": ("NNCF", "accuracy", None),
}


def read(tmp_path, text: str | bytes):
    path = tmp_path / "tool.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_logs([path], BASE.logs)


def test_targets_that_cannot_be_met(tmp_path) -> None:
    for line, told in UNREACHABLE.items():
        found = read(tmp_path, f"starting\n{line}\ndone\n")
        assert (found.toolchain, found.target, found.target_value) == told, line
        assert found.unreachable is True and found.line == line[:200], line


def test_every_pattern_of_a_search_has_a_line_here() -> None:
    """Those of failures and settings have theirs in test_failure_log.py."""
    lines = [*UNREACHABLE, "MixedPrecisionQuantizationConfig(num_of_images=32)"]
    own = [p for p in BASE.logs if "unreachable" in p.sets or "images" in re.compile(p.pattern).groupindex]
    assert not [each.pattern for each in own if not any(re.search(each.pattern, line) for line in lines)]


def test_what_does_not_complain_of_its_target(tmp_path) -> None:
    found = read(tmp_path, "MixedPrecisionQuantizationConfig(num_of_images=64)\n{'num_of_images': 16}\n")
    assert (found.images, found.unreachable) == (16, False)
    found = read(tmp_path, "\xff\xfe nothing of interest; import os; $(rm -rf /)\n")
    assert found.unreachable is False and found.toolchain is None
    assert read_logs([], BASE.logs).unreachable is None


@pytest.mark.thorough
def test_beginning_and_end_of_a_huge_log_are_read(tmp_path) -> None:
    filler = b"x" * 99 + b"\n"
    middle = b"could not achieve the required accuracy drop\n"
    half = filler * (MAX_BYTES // 100)
    found = read(
        tmp_path, b"num_of_images=8\n" + half + middle + half + b"No solution was found during solving the LP problem"
    )
    assert (found.images, found.unreachable, found.target) == (8, True, None)


def test_a_long_line_is_cut(tmp_path) -> None:
    assert read(tmp_path, "num_of_images=8" + " " * 5000 + "num_of_images=4").images == 8
    assert read(tmp_path, " " * 5000 + "num_of_images=4").images is None


def test_what_is_no_log(tmp_path) -> None:
    with pytest.raises(DataError, match="not text"):
        read(tmp_path, b"\0\1\2")
    with pytest.raises(DataError, match="cannot be found"):
        read_logs([tmp_path / "none.log"], BASE.logs)


BROKEN = {
    "- {toolchain: mine, pattern: '(', sets: {}}": "not a valid regular expression",
    "- {toolchain: mine, pattern: '(?P<imges>x)'}": "did you mean 'images'",
    "- {toolchain: mine, pattern: x, sets: {unreachible: true}}": "did you mean 'unreachable'",
    "pattern: x": "list of patterns",
    f"- {{toolchain: mine, pattern: '{'(' * 900}{')' * 900}'}}": "not a valid regular expression",
    "- {toolchain: mine, pattern: 'a{99999999999}'}": "not a valid regular expression",
    "- {toolchain: mine, pattern: '[[a]', sets: {}}": "not a valid regular expression: Possible nested set",
    f"- {{toolchain: mine, pattern: {'x' * 2001}}}": "at most 2000 characters",
}


def test_broken_patterns_are_refused(tmp_path) -> None:
    for text, message in BROKEN.items():
        (tmp_path / "logs.yaml").write_text(text)
        with pytest.raises(RuleError, match=message):
            load_rules([tmp_path])


OWN = LogPattern(toolchain="mine", pattern=r"needs \d+ kB, has (?P<target_value>\d+)", sets={"unreachable": True})


@pytest.mark.thorough
def test_a_process_of_its_own_finds_the_same(tmp_path) -> None:
    log = tmp_path / "a\udcff.log"
    log.write_text("num_of_images=8\nneeds 900 kB, has 512\n" + traceback_of("MemoryError"))
    apart = read_log_facts([log], BASE.logs, [OWN])
    assert apart == read_log_facts([log], [*BASE.logs, OWN])
    assert (apart.search.images, apart.search.target_value, apart.failure.kind) == (8, 512.0, "out-of-memory")
    endless = LogPattern(pattern=r"has (?P<target_value>\d+e\d+)", sets={"unreachable": True})
    log.write_text("has 9e999\n")
    assert read_log_facts([log], (), [endless]).search.target_value == math.inf


def traceback_of(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n{error}\n'


@pytest.mark.thorough
def test_a_pattern_of_the_user_that_never_ends_is_stopped(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_SECONDS.variable, "1")
    (tmp_path / "a.log").write_text("a" * 100 + "!")
    own = [OWN, LogPattern(pattern="^(a+)+$", sets={"unreachable": True})]
    with pytest.raises(LimitError, match="takes too many seconds") as raised:
        read_logs([tmp_path / "a.log"], BASE.logs, own)
    assert raised.value.where[0] == str(tmp_path / "a.log") and "pattern  ^(a+)+$" in raised.value.where


def test_a_search_that_dies_is_told(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_text("x")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(DataError, match="ended without an answer"):
        read_logs([tmp_path / "a.log"], BASE.logs, [OWN])


@pytest.mark.thorough
def test_built_in_patterns_are_told_from_those_of_the_user(tmp_path) -> None:
    assert known_and_own_patterns(BASE) == (BASE.logs, ())
    (tmp_path / "logs.yaml").write_text("- {pattern: mine, sets: {unreachable: true}}")
    known, own = known_and_own_patterns(quantmedic.load_rulebase([tmp_path]))
    assert (known, [each.pattern for each in own]) == (BASE.logs, ["mine"])
    assert known_and_own_patterns(load_rules([tmp_path])) == ((), load_rules([tmp_path]).logs)


@pytest.mark.thorough
def test_patterns_of_the_user_count(tmp_path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "logs.yaml").write_text(
        "- toolchain: mine\n  pattern: 'needs \\d+ kB, has (?P<target_value>\\d+)'\n  sets: {unreachable: true}\n"
    )
    (tmp_path / "tool.log").write_text("needs 900 kB, has 512")
    x = images(8)
    paths = save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": x}))
    base = quantmedic.load_rulebase([tmp_path / "rules"])
    diagnosis = quantmedic.diagnose(*paths, validation=x, threads=1, rules=base, toolchain_logs=[tmp_path / "tool.log"])
    search = diagnosis.model.search
    assert (search.toolchain, search.target_value) == ("mine", 512.0)
    assert "M004" in {rule for cause in diagnosis.causes for rule in cause.rules}
