"""The policy file: where it is looked for, what it may say, and what is said about what it may not."""

import os
import re
import sys
import tomllib
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from builders.hostile import HOSTILE_NAMES
from builders.properties import examples
from builders.toml_styles import Writer
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.errors import PolicyError, RuleError
from quantmedic.engine.gate.policy import Policy, PolicyFile
from quantmedic.engine.reading_limits import POLICY_BYTES, LimitError
from quantmedic.store.policy_file import apply_policy, find_policy, load_policy, policy_folders
from quantmedic.store.policy_mistakes import KEYS, MOST_LISTED

BASE = load_rulebase()
EXEMPTION = '[[ignore]]\nrule = "A004"\nreason = "fixed in hardware"\n'
HOSTILE = (*HOSTILE_NAMES[:-1], "__import__('os').system('exit 3')", HOSTILE_NAMES[-1])


def written(folder: Path, text: str, name: str = "quantmedic.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


def refused(path: Path) -> PolicyError | LimitError:
    with pytest.raises((PolicyError, LimitError)) as caught:
        load_policy(path)
    return caught.value


# Finding


def test_nearest_wins_upward(tmp_path: Path) -> None:
    above = written(tmp_path, "")
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    assert find_policy(deep) == above.resolve()
    near = written(tmp_path / "a" / "b", "[tool.quantmedic]", "pyproject.toml")
    assert find_policy(deep) == near.resolve()
    assert find_policy(tmp_path / "a") == above.resolve()
    own = written(tmp_path / "a" / "b", "")
    assert find_policy(deep) == own.resolve(), "quantmedic's own file wins within a folder"


#: What a ``pyproject.toml`` holds, and whether it counts as a policy.
PROJECTS = {
    "[project]\nname = 'quantmedic'\n": False,
    "[tool.quantmedic]\n": True,
    "[tool]\nquantmedic = {}\n": True,
    '["tool" . "quantmedic".check]\n': True,
    "# [tool.quantmedic]\n[tool.ruff]\n": False,
    "tool = 1\nname = 'quantmedic'\n": False,
    "[tool.quantmedic-extra]\n": False,
    "[project\nname = 'quantmedic'\n": False,
    "[project\n[tool.quantmedic]\n": True,
    "[project\n[tool . 'quantmedic']\n": True,
    "a = " + "[" * 5000 + "\n[tool.quantmedic]\n": True,
    "a = " + "[" * 5000 + "\nquantmedic\n": False,
}


def test_pyproject_counts_where_it_holds_the_table(tmp_path: Path) -> None:
    above = written(tmp_path, "").resolve()
    for text, found in PROJECTS.items():
        here = written(tmp_path / "project", text, "pyproject.toml").resolve()
        assert find_policy(here.parent) == (here if found else above), text


def test_no_policy_up_to_the_root() -> None:
    assert find_policy(Path(Path.cwd().anchor)) is None
    assert find_policy(Path(Path.cwd().anchor, "no", "such", "folder")) is None


def test_search_starts_at_the_real_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = written(tmp_path / "real", "")
    (tmp_path / "real" / "sub").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "sub")
    assert find_policy(tmp_path / "link") == found.resolve()
    monkeypatch.chdir(tmp_path / "real" / "sub")
    assert find_policy(Path()) == found.resolve()
    assert find_policy(Path("..")) == found.resolve()


def test_a_policy_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    written(tmp_path, "")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "quantmedic.toml").symlink_to(tmp_path / "gone")
    found = find_policy(tmp_path / "sub")
    assert found == tmp_path.resolve() / "sub" / "quantmedic.toml"
    assert refused(found).message == "the policy cannot be read"


# Reading


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    for text in ("", "# nothing\r\n", "\ufeff"):
        file = load_policy(written(tmp_path, text))
        assert file.policy == Policy()
        assert file.line("check.fail_on") == 1
    assert load_policy(written(tmp_path, "[tool.quantmedic]", "pyproject.toml")).policy == Policy()


def test_lines_of_a_pyproject_are_without_its_prefix(tmp_path: Path) -> None:
    text = '[tool.ruff]\nignore = []\n[tool.quantmedic.check]\nfail_on.severity = "low"\n[[tool.quantmedic.ignore]]\n'
    path = written(tmp_path, text + 'rule = "A004"\nreason = "x"\nexpires = "never"\n', "pyproject.toml")
    file = load_policy(path)
    assert file.policy.check.fail_on.severity == "low"
    assert file.lines == {
        "": 3,
        "check": 3,
        "check.fail_on": 4,
        "check.fail_on.severity": 4,
        "ignore": 5,
        "ignore.0": 5,
        "ignore.0.rule": 6,
        "ignore.0.reason": 7,
        "ignore.0.expires": 8,
    }
    assert file.line("check.budget.3.metric") == 3
    assert file.line("rules") == 3


def test_dates_may_be_quoted(tmp_path: Path) -> None:
    for expires in ("2026-11-30", '"2026-11-30"', "'2026-11-30'"):
        (exemption,) = load_policy(written(tmp_path, f"{EXEMPTION}expires = {expires}\n")).policy.ignore
        assert exemption.expires == date(2026, 11, 30) and type(exemption.expires) is date


def test_windows_line_ends(tmp_path: Path) -> None:
    text = f'\ufeff{EXEMPTION}expires = "never"\n[check]\nbaselin = 3\n'.replace("\n", "\r\n")
    assert refused(written(tmp_path, text)).where == (f"{tmp_path}/quantmedic.toml:6",)


#: Policies, and below each wrong line what is said about it.
MISTAKES = """
chek = 1
#! unknown key "chek" in the policy; did you mean "check"?
select = ["W"]
#! unknown key "select" in the policy; it belongs in [rules]
[tool.quantmedic.check]
#! unknown key "tool" in the policy: a quantmedic.toml has its tables without [tool.quantmedic]
[check]
zzz = 1
#! unknown key "zzz" in [check]
fail_on = "high"
#! check.fail_on must be a table such as {severity = "high"}, not "high"
coverage = {min = 90}
#! check.coverage.min must be a share from 0 to 1, not 90
baseline = ""
#! check.baseline must be the name of a file, not ""
verdicts.anomalous = "fial"
#! check.verdicts.anomalous must be "fail" or "pass", not "fial"; did you mean "fail"?
[rules]
reason = "x"
#! unknown key "reason" in [rules]; it belongs in [[ignore]]
[check.budget]
#! check.budget must be a list of tables, each under [[check.budget]], not a table
---
ignore = ["A004"]
#! each of ignore must be a table, not "A004"; rules are left out by ignore under [rules]
thresholds = "low"
#! thresholds must be a table of names and numbers, under [thresholds], not "low"
[check]
coverage = {min = nan}
#! check.coverage.min must be a share from 0 to 1, not nan
budget = [
1]
#! each of check.budget must be a table, not 1
[check.fail_on]
severity = "High"
#! check.fail_on.severity must be "high", "medium", "low", "info" or "never", not "High"; did you mean "high"?
known = 1
#! check.fail_on.known must be true or false, not 1
rules = [
"S003",
5]
#! each of check.fail_on.rules must be text that is not empty, not 5
---
[[check.budget]]
#! check.budget.metric is missing: write a name such as "top1"
max_drop = HUGE
#! check.budget.max_drop must be a number from 0 to 1e12, not a number that is too large
unit = "point"
#! check.budget.unit must be "points", "percent" or "absolute", not "point"; did you mean "points"?
confidence = 95
#! check.budget.confidence must be a number between 0.5 and 1 such as 0.95, not 95
[[check.budget]]
#! a budget of top1 has max_drop and no max nor min
metric = "top1"
[[check.budget]]
#! a budget of sqnr_db has min and no max nor max_drop
metric = "sqnr_db"
max_drop = 1
[[check.budget]]
#! min of agreement is a share such as 0.99
metric = "agreement"
min = 99
[[check.budget]]
metric = "top1"
max_drop = -1
#! check.budget.max_drop must be a number from 0 to 1e12, not -1
confidence = 0.9999999999999999
#! check.budget.confidence must be a number between 0.5 and 1 such as 0.95, not 0.9999999999999999
[[check.budget]]
metric = "top1"
max_drop = inf
#! check.budget.max_drop must be a number from 0 to 1e12, not inf
min = -1e308
#! check.budget.min must be a number from -1e12 to 1e12, not -1e+308
---
[[check.budget]]
metric = "top-1"
#! unknown metric "top-1"; did you mean "top1"?
max_drop = 1
[[check.budget]]
metric = "mae"
max_drop = 1
unit = "points"
#! mae has no points: write percent or absolute
[[check.budget]]
metric = "sqnr_db"
output = "a"
min = 1
[[check.budget]]
#! "sqnr_db" of output "a" has a budget already, on line 10
metric = "sqnr_db"
output = "a"
min = 2
---
[[check.budget]]
metric = "bleu"
#! unknown metric "bleu"; known: \
top1, top5, mae, rmse, map, map50, miou, f1, f1-binary, cer, wer, recall@1, \
perplexity, agreement, sqnr_db, kl, same_top and module:function
max_drop = 1
---
[thresholds]
clipped_share = "1"
#! thresholds.clipped_share must be a finite number, not "1"
a.b = 1
#! thresholds.a must be a finite number, not a table
b = true
#! thresholds.b must be a finite number, not true
c = nan
#! thresholds.c must be a finite number, not nan
d = HUGE
#! thresholds.d must be a finite number, not a number that is too large
threshold_quantize_error = {mse = [1]}
#! thresholds.threshold_quantize_error.mse must be a finite number, not a list
---
[[ignore]]
#! ignore.expires is missing: write a date such as 2026-11-30, or "never"
rule = "A004"
reason = " \\t"
#! ignore.reason must be a text that says why, not " \\u0009"
layers = "head/*"
#! ignore.layers must be a list of patterns such as ["head/*"], not "head/*"
[[ignore]]
#! ignore.reason is missing: write a text that says why
rule = "A004"
expires = 2026-11-30T00:00:00
#! ignore.expires must be a date such as 2026-11-30, or "never", not 2026-11-30T00:00:00
[[ignore]]
rule = "A004"
reason = "x"
expires = "20261130"
#! ignore.expires must be a date such as 2026-11-30, or "never", not "20261130"
""".strip().split("\n---\n")


def said_of(text: str) -> list[tuple[int, str]]:
    """What stands below lines, with their numbers."""
    found, line = [], 0
    for number, each in enumerate(text.splitlines(), 1):
        if each.startswith("#! "):
            found.append((line, each.removeprefix("#! ")))
        else:
            line = number
    return found


def told(error: PolicyError | LimitError) -> list[str]:
    """Each mistake behind its place, also where there is one."""
    return list(error.where) if " mistakes" in error.message else [f"{error.where[0]}: {error.message}"]


def test_mistakes_are_named_with_their_lines_in_our_own_words(tmp_path: Path) -> None:
    for text in MISTAKES:
        error = refused(written(tmp_path, text.replace("HUGE", f"0x{'f' * 5000}")))
        assert told(error) == [f"{tmp_path}/quantmedic.toml:{line}: {words}" for line, words in said_of(text)]
        assert error.help


def _inside_pyproject(text: str) -> str:
    """The same policy below ``[tool.quantmedic]``, two lines further down."""
    text = re.sub(r"^(\[+)(?=[a-z])", r"\1tool.quantmedic.", text, flags=re.M)
    return f"[project]\n[tool.quantmedic]\n{text}"


def test_many_mistakes_are_not_all_listed(tmp_path: Path) -> None:
    error = refused(written(tmp_path, "".join(f"key{number} = 1\n" for number in range(5000))))
    assert error.message == f"the policy has more than {MOST_LISTED} mistakes"
    assert len(error.where) == MOST_LISTED


def test_what_is_not_toml(tmp_path: Path) -> None:
    deep = "a policy has too many levels: more, the limit is 32 levels"
    for text, where, message in (
        ("[check\n", ":1: [check", "expected ']' at the end of a table declaration"),
        ("[check]\nfail_on\n", ":2: fail_on", "expected '=' after a key in a key/value pair"),
        ("[check]\n[check]\n", ":2: [check]", "a table or key is given twice"),
        ("a = 1\na = 2\n", ":2: a = 2", "a table or key is given twice"),
        ('a = """\n\n', ":3", "unterminated string"),
        ("a = 2026-02-30\n", ":1: a = 2026-02-30", "invalid date or datetime"),
        ("a = " + "1" * 5000, "", "a number has too many digits"),
        ("a = " + "[" * 10_000, ":1", deep),
        ("\n" + ".".join("a" * 10_000) + " = 1", ":2", deep),
    ):
        error = refused(written(tmp_path, text))
        assert error.message == (deep if message == deep else f"the policy is not TOML: {message}")
        assert error.where == (f"{tmp_path}/quantmedic.toml{where}",)


def test_pipes_are_not_opened_and_the_empty_device_is_an_empty_policy(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "quantmedic.toml")
    assert refused(tmp_path / "quantmedic.toml").message == "the policy cannot be read"
    assert load_policy(Path(os.devnull)).policy == Policy()


def test_a_drop_of_more_than_all_points_is_refused(tmp_path: Path) -> None:
    budget = '[[check.budget]]\nmetric = "top1"\nmax_drop = {}\n'
    assert "max_drop in points is at most 100" in str(refused(written(tmp_path, budget.format(100.5))))
    assert load_policy(written(tmp_path, budget.format(100))).policy.check.budget[0].max_drop == 100
    percent = budget.format(250) + 'unit = "percent"\n'
    assert load_policy(written(tmp_path, percent)).policy.check.budget[0].max_drop == 250


def test_what_is_no_text_file(tmp_path: Path) -> None:
    path = tmp_path / "quantmedic.toml"
    path.write_bytes(b"[check]\n# \xe9t\xe9\n")
    assert refused(path).message == "the policy is not UTF-8 text"
    assert refused(path).where == (f"{path}:2",)
    path.write_bytes("[check]\n".encode("utf-16"))
    assert refused(path).message == "the policy is not UTF-8 text"
    path.write_bytes(b"[check]\n\0")
    assert refused(path).message.startswith("the policy is not TOML")
    path.write_bytes(b"#" * (POLICY_BYTES.most + 1))
    assert refused(path).message == "a policy has too many bytes: more, the limit is 1.0 MiB"
    assert refused(tmp_path).message == "the policy is a folder"
    assert refused(tmp_path / "gone.toml").message == "the policy cannot be read"
    assert refused(tmp_path / "nul\0.toml").message == "the policy cannot be read"
    assert refused(written(tmp_path, "[tool]\n", "pyproject.toml")).message == "there is no policy in this file"
    assert refused(written(tmp_path, "tool = 1\n", "pyproject.toml")).message == "there is no policy in this file"
    broken = refused(written(tmp_path, "tool.quantmedic = 1\n", "pyproject.toml"))
    assert broken.message == "tool.quantmedic must be a table"
    assert broken.where == (f"{tmp_path}/pyproject.toml:1",)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = written(tmp_path, "", "pyproject.toml")
    path.chmod(0)
    with pytest.raises(PolicyError, match="cannot be read"):
        find_policy(tmp_path)


# Hostile content


def assert_inert(error: Exception) -> None:
    said = str(error).split("\n")
    assert all(line.isprintable() and not line.strip().startswith(("::", "##[")) for line in said)
    assert len(str(error)) < 2000


def test_hostile_text_is_inert_in_errors_and_kept_as_data(tmp_path: Path) -> None:
    for name in HOSTILE:
        quoted = '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c):04x}" for c in name) + '"'
        budget = f"[[check.budget]]\nmetric = {quoted}\n"
        for text in (
            f"{quoted} = 1\n",
            f"[check]\n{quoted} = 1\n",
            f"[check.fail_on]\nseverity = {quoted}\n",
            budget,
            f"{budget}max_drop = 1\n{budget}max_drop = 1\n",
            f"[thresholds]\n{quoted} = true\n",
            f"[thresholds.{quoted}]\na = 1\n",
            f"{EXEMPTION}expires = {quoted}\n",
            f"a = 1\na = 2 # {name if name.isprintable() else ''}\n",
        ):
            assert_inert(refused(written(tmp_path, text)))
        whole = f"[check]\nbaseline = {quoted}\n[[ignore]]\nrule = {quoted}\nreason = {quoted}\nexpires = 'never'\n"
        file = load_policy(written(tmp_path, whole))
        assert file.policy.check.baseline == file.policy.ignore[0].rule == file.policy.ignore[0].reason == name
        with pytest.raises(PolicyError) as caught:
            apply_policy(BASE, file)
        assert_inert(caught.value)


def test_hostile_folder_is_inert_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("::error::owned", "##[error]owned", "esc\x1b[31m", "line\n::error::x"):
        written(Path(name), "a = 1")
        assert_inert(refused(Path(name, "quantmedic.toml")))


@pytest.mark.parametrize("writable", ["quantmedic.toml", "."])
def test_policy_above_that_everybody_may_write_is_refused(tmp_path: Path, writable: str) -> None:
    shared = tmp_path / "shared"
    (work := shared / "work").mkdir(parents=True)
    found = written(shared, "[check]\n")
    (shared / writable).chmod(0o777)
    with pytest.raises(PolicyError, match="can be written by every user"):
        find_policy(work)
    assert find_policy(shared) == found.resolve(), "the user went to that folder"
    shared.chmod(0o1777)
    found.chmod(0o644)
    assert find_policy(work) == found.resolve(), "nobody can replace it, as in /tmp"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("given", ["pyproject.toml", "."])
def test_policy_above_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    shared = tmp_path / "shared"
    (work := shared / "work").mkdir(parents=True)
    found = written(shared, "[tool.quantmedic.check]\n", "pyproject.toml")
    os.chown(shared / given, 4711, -1)
    monkeypatch.delenv("SUDO_UID", raising=False)
    with pytest.raises(PolicyError, match="belongs to user 4711") as refusal:
        find_policy(work)
    assert "--config" in str(refusal.value) and str(found) in str(refusal.value)
    monkeypatch.setenv("SUDO_UID", "4711")
    assert find_policy(work) == found.resolve()


@pytest.mark.thorough
def test_nothing_is_executed_or_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    written(tmp_path, "raise SystemExit(3)\n", "trap.py")
    text = '[[check.budget]]\nmetric = "trap:metric"\nmax_drop = 1\n[rules]\nfolders = ["."]\n'
    file = load_policy(written(tmp_path, text))
    assert policy_folders(file) == [tmp_path]
    apply_policy(load_rulebase(policy_folders(file)), file)
    assert "trap" not in sys.modules


# Applying


def policy(tmp_path: Path, text: str) -> PolicyFile:
    return load_policy(written(tmp_path, text))


def test_rules_are_selected_and_thresholds_replaced(tmp_path: Path) -> None:
    text = '[rules]\nselect = ["W", "data"]\nignore = ["W001"]\n[thresholds]\nclipped_share = 0.5\n'
    base = apply_policy(BASE, policy(tmp_path, text + "threshold_zscore_outlier_removal = 4\n"))
    assert {rule.id[0] for rule in base.rules} == {"W", "D"}
    assert [rule.id for rule in base.ignored] == ["W001"]
    assert base.threshold("clipped_share") == 0.5
    assert base.threshold("activation_zscore") == 4
    assert base.thresholds["clipped_share"].source == "quantmedic.toml"


def test_no_policy_leaves_the_rules_alone() -> None:
    assert apply_policy(BASE, PolicyFile()) == BASE
    assert policy_folders(PolicyFile()) == []


#: As `MISTAKES`, of what only the rules can tell.
UNKNOWN = """
[rules]
select = ["W",
"w001"]
#! no rule matches "w001"; did you mean "W001"?
ignore = ["wieghts"]
#! no rule matches "wieghts"; did you mean "weights"?
[check]
fail_on.rules = ["bias_overflow"]
#! no rule matches "bias_overflow"; did you mean "bias-overflow"?
[[ignore]]
reason = "x"
expires = "never"
rule = "Q999"
#! no rule matches "Q999"
[thresholds]
clipped_shar = 1
#! unknown threshold 'clipped_shar'; did you mean 'clipped_share'?
threshold_quantize_error = {sqnr = 0}
#! sqnr must be a positive ratio, not 0.0
---
[thresholds.threshold_quantize_error]
#! threshold_quantize_error knows the numbers mse, cs and sqnr
x = 1
---
check.fail_on.rules = ["W", "weights"]
#! "W" is to fail, but [rules] leaves it out
#! "weights" is to fail, but [rules] leaves it out
[rules]
ignore = ["weights"]
---
check.fail_on.rules = ["S003"]
#! "S003" is to fail, but [rules] leaves it out
[rules]
select = ["W"]
""".strip().split("\n---\n")


def test_what_the_rules_do_not_know_is_named_with_its_line(tmp_path: Path) -> None:
    for text in UNKNOWN:
        file = policy(tmp_path, text)
        with pytest.raises(PolicyError) as caught:
            apply_policy(BASE, file)
        assert told(caught.value) == [f"{tmp_path}/quantmedic.toml:{line}: {words}" for line, words in said_of(text)]


def test_an_exemption_of_a_rule_that_is_left_out_is_no_mistake(tmp_path: Path) -> None:
    apply_policy(BASE, policy(tmp_path, f'[rules]\nignore = ["A004"]\n{EXEMPTION}expires = "never"\n'))


def test_rule_folders_lie_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "ci" / "rules").mkdir(parents=True)
    text = f"[rules]\nfolders = ['ci/rules', '{tmp_path}']\n"
    assert policy_folders(policy(tmp_path, text)) == [tmp_path / "ci" / "rules", tmp_path]
    file = policy(tmp_path, '[rules]\nfolders = ["ci/rules",\n"gone"]\n')
    with pytest.raises(PolicyError, match="no such rule folder") as caught:
        policy_folders(file)
    assert caught.value.where == (f"{tmp_path}/quantmedic.toml:3",)


def test_a_policy_names_no_files_outside_its_folder(tmp_path: Path) -> None:
    """A stranger's policy must not choose what is read from the machine, and shown in reports."""
    (tmp_path / "repository" / "rules").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "repository" / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("..", "../elsewhere", str(tmp_path / "elsewhere"), "link"):
        file = policy(tmp_path / "repository", f"[rules]\nfolders = ['{name}']\n")
        with pytest.raises(PolicyError, match="outside that of the policy"):
            policy_folders(file)


def test_rules_and_their_pages_are_no_links_to_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token")
    (tmp_path / "rules").mkdir()
    for name in ("U001.yaml", "U001.md"):
        link = tmp_path / "rules" / name
        link.symlink_to(tmp_path / "secret")
        with pytest.raises(RuleError, match="a link out of their folder") as caught:
            load_rulebase([tmp_path / "rules"])
        assert caught.value.where == (str(link),)
        link.unlink()


def test_a_policy_that_is_found_is_no_link_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("token")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "quantmedic.toml").symlink_to(tmp_path / "secret")
    with pytest.raises(PolicyError, match="is a link out of its folder"):
        find_policy(tmp_path / "here")


# The manual page


PAGE = (Path(str(files("quantmedic.manuals"))) / "general" / "check.md").read_text(encoding="utf-8")


def example() -> str:
    """The complete policy that the page shows."""
    return max(re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S), key=len)


def test_every_key_has_words() -> None:
    assert [name for name, field in KEYS.items() if not field.description] == []


def test_the_example_of_the_page_is_a_policy_for_the_rules_that_there_are(tmp_path: Path) -> None:
    for name, text in (("quantmedic.toml", example()), ("pyproject.toml", _inside_pyproject(example()))):
        file = load_policy(written(tmp_path, text, name))
        for folder in file.policy.rules.folders:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        assert policy_folders(file)
        apply_policy(BASE, file)
        shown = {re.sub(r"\.\d+", "", key) for key in file.lines} - {""}
        assert set(KEYS) <= shown, "the example shows every key"


def test_every_toml_block_of_the_page_is_a_policy(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    for block in blocks:
        name = "pyproject.toml" if "[tool." in block else "quantmedic.toml"
        apply_policy(BASE, load_policy(written(tmp_path, block, name)))
    assert len(blocks) > 1


#: What a table of the page needs beside the key that a row shows.
REQUIRED = {
    "check": "",
    "check.budget": 'metric = "top1"\nmax_drop = 1\n',
    "rules": "",
    "thresholds": "",
    "ignore": 'rule = "A004"\nreason = "x"\nexpires = "never"\n',
}


def rows() -> list[tuple[str, str, str, str]]:
    """Header, key, value and default of every row of the page's tables of keys."""
    found = []
    for header, body in re.findall(r"^### (\[[^\n]*\])\n(.*?)(?=^##)", PAGE, re.M | re.S):
        for assignment, default in re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", body, re.M):
            key, _, value = assignment.partition(" = ")
            found.append((header, key, value, default.strip("`")))
    return found


def test_the_page_explains_every_key() -> None:
    shown = {f"{header.strip('[]')}.{key}" for header, key, *_ in rows()}
    tables = {key.rpartition(".")[0] for key in KEYS} - {""}
    assert shown - {"thresholds.activation_zscore"} == set(KEYS) - tables - {"thresholds"}
    assert len(shown) == len(rows())


def test_the_page_shows_values_and_defaults_as_they_are(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for header, key, value, default in rows():
        table = header.strip("[]")
        metric = {"min": "sqnr_db", "max": "kl"}.get(key)
        required = REQUIRED[table]
        if metric is not None:
            required = required.replace("top1", metric).replace("max_drop = 1\n", "")
        others = "".join(line for line in required.splitlines(keepends=True) if not line.startswith(f"{key} ="))
        without = written(tmp_path, f"{header}\n{others}")
        with subtests.test(f"{header} {key}"):
            loaded = load_policy(written(tmp_path / "with", f"{header}\n{others}{key} = {value}\n"))
            apply_policy(BASE, loaded) if not loaded.policy.rules.folders else None
            if default == "required":
                refused(without)
                continue
            found: Any = load_policy(without).policy
            for name in f"{table}.{key}".split("."):
                found = getattr(found[0] if isinstance(found, tuple) else found, name, None)
            expected = tomllib.loads(f"x = {default}")["x"] if default not in ("none", "the rules' own") else None
            assert (list(found) if isinstance(found, tuple) else found) == expected


# Every style


@examples(100)
@given(st.integers(0, 2**32), st.booleans())
def test_every_style_gives_the_same_policy_and_the_lines_of_its_keys(
    tmp_path_factory: pytest.TempPathFactory, seed: int, inside: bool
) -> None:
    """The example of the page, in every spelling that TOML has."""
    tree = tomllib.loads(example())
    writer = Writer(seed)
    above = ("tool", "quantmedic") if inside else ()
    text = writer.write(tree, above)
    name = "pyproject.toml" if inside else "quantmedic.toml"
    path = written(tmp_path_factory.getbasetemp() / "styles", text, name)
    file = load_policy(path)
    assert file.policy == Policy.model_validate(tree)
    for key, line in writer.lines.items():
        assert file.line(".".join(map(str, key[len(above) :]))) == line
