"""Rules of a user's own: written, checked and tested on the command line."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quantmedic.api.authoring import lint_rules, new_rule, run_examples
from quantmedic.api.rulebase import rule_folder
from quantmedic.cli.main import cli
from quantmedic.engine.case.facts import SCOPES
from quantmedic.engine.errors import QuantmedicError

MANUAL = Path(__file__).parents[2] / "manuals" / "general" / "writing-rules.md"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["explain", *map(str, arguments)])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one sound rule, U001."""
    new_rule("noisy-weights", tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.thorough
def test_new_rules_pass_as_they_stand_in_thirty_lines(tmp_path: Path) -> None:
    for number, scope in enumerate(SCOPES, 1):
        done = call("--new-rule", f"some-{scope}-defect", "--scope", scope, "-o", tmp_path)
        assert done.exit_code == 0, done.output
        files = [tmp_path / f"U{number:03}.yaml", tmp_path / f"U{number:03}.md"]
        assert sum(len(file.read_text().splitlines()) for file in files) <= 30
    done = call("--test-rules", tmp_path)
    assert done.exit_code == 0, done.output
    count = len(SCOPES)
    assert done.output.endswith(f"{count} rules, 0 errors, 0 warnings, {2 * count} of {2 * count} examples pass\n")


def test_new_says_what_to_edit_and_what_to_run_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "test-rules my-rules" in call("--new-rule", "some-defect").output
    done = call("--new-rule", "some-defect", "-o", tmp_path / "mine")
    assert "edit U001.yaml" in done.output
    assert "quantmedic explain --list facts --scope layer" in done.output
    assert f"next: quantmedic explain --test-rules {tmp_path / 'mine'}" in done.output


def test_new_takes_the_next_free_id_and_never_overwrites(folder: Path) -> None:
    rule, page = new_rule("another-defect", folder)
    assert (rule.name, page.name) == ("U002.yaml", "U002.md")
    (folder / "U003.md").write_text("mine")
    rule, page = new_rule("third-defect", folder)
    assert (rule.name, page.name) == ("U004.yaml", "U004.md")
    assert (folder / "U003.md").read_text() == "mine"


def test_new_refuses_what_would_not_load(tmp_path: Path) -> None:
    for name, words in (
        ("Wide Range", "did you mean 'wide-range'?"),
        ("wide", "two or more lower-case words"),
        ("bias-overflow", "W002 bias-overflow is a built-in rule"),
    ):
        with pytest.raises(QuantmedicError, match=re.escape(words)):
            new_rule(name, tmp_path / "mine")
        assert not (tmp_path / "mine").exists()


@pytest.mark.thorough
def test_contradiction_with_an_example_fails_and_tells_the_facts(folder: Path) -> None:
    edit(folder / "U001.yaml", "lt: 25", "lt: 30")
    done = call("--test-rules", folder)
    assert done.exit_code == 1
    assert "FAIL  silent example 1 fires: weight.rounding.sqnr_db 25.5 < 30; model.harmed = true" in done.output
    assert "pass  fires example 1" in done.output
    assert "1 of 2 examples pass" in done.output


@pytest.mark.thorough
def test_facts_that_an_example_lacks_or_misspells_are_named(folder: Path) -> None:
    rule = (folder / "U001.yaml").read_text()
    edit(folder / "U001.yaml", "{rounding: {sqnr_db: 25.5}}", "{max: 3}")
    done = call("--test-rules", folder)
    assert done.exit_code == 1
    assert "FAIL  silent example 1 is not judged: it lacks weight.rounding.sqnr_db" in done.output
    (folder / "U001.yaml").write_text(rule)
    edit(folder / "U001.yaml", "sqnr_db: 25.5", "sqnr: 25.5")
    done = call("--test-rules", folder)
    assert done.exit_code == 1
    assert "unknown fact 'weight.rounding.sqnr' in an example; did you mean 'weight.rounding.sqnr_db'?" in done.output
    assert "U001.yaml:16" in done.output


@pytest.mark.thorough
def test_every_rule_that_cannot_be_loaded_is_told_with_a_suggestion(folder: Path) -> None:
    new_rule("second-defect", folder)
    new_rule("third-defect", folder)
    edit(folder / "U001.yaml", "weight.rounding.sqnr_db, lt", "weight.rounding.sqnr, lt")
    edit(folder / "U002.yaml", "severity:", "severty:")
    done = call("--test-rules", folder)
    assert done.exit_code == 1
    assert "unknown fact 'weight.rounding.sqnr'; did you mean 'weight.rounding.sqnr_db'?" in done.output
    assert "unknown key 'severty'; did you mean 'severity'?" in done.output
    assert "1 rule, 2 errors" in done.output, "the third one is looked at"


@pytest.mark.thorough
def test_rule_that_can_never_fire_is_refused(folder: Path) -> None:
    edit(folder / "U001.yaml", "  all:\n", "  all:\n    - {fact: weight.rounding.sqnr_db, gt: 40}\n")
    done = call("--test-rules", folder)
    assert done.exit_code == 1
    assert "FAIL  fires example 1 is silent: weight.rounding.sqnr_db 12.5, not > 40" in done.output


@pytest.mark.thorough
def test_warnings_do_not_refuse(folder: Path) -> None:
    edit(folder / "U001.yaml", "    - {fact: model.harmed, is: true}\n", "")
    done = call("--test-rules", folder)
    assert "warning: U001 severity medium without asking for harm" in done.output
    assert done.exit_code == 0


@pytest.mark.thorough
def test_a_page_that_is_missing_and_an_id_that_is_taken_are_refused(folder: Path) -> None:
    (folder / "U001.md").unlink()
    done = call("--test-rules", folder)
    assert done.exit_code == 1 and "U001 it has no page" in done.output
    edit(folder / "U001.yaml", "id: U001", "id: W002")
    done = call("--test-rules", folder)
    assert done.exit_code == 1 and "duplicate rule id W002" in done.output and "help: give one of them" in done.output


@pytest.mark.thorough
def test_nothing_to_check_is_a_failure_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "missing", rule_folder()):
        done = call("--test-rules", folder)
        assert isinstance(done.exception, QuantmedicError) and str(folder) in str(done.exception)


@pytest.mark.thorough
def test_own_thresholds_and_remedies_are_used_and_counted(folder: Path) -> None:
    (folder / "thresholds.yaml").write_text(
        "weight_noise: {value: 25, unit: dB, source: us, description: too coarse}\n"
    )
    (folder / "remedies.yaml").write_text("ask-vendor: {title: ask, changes: nothing, cost: time, unsafe: never}\n")
    done = call("--test-rules", folder)
    assert "nothing uses the threshold weight_noise" in done.output
    assert "no rule prescribes the remedy ask-vendor" in done.output
    edit(folder / "U001.yaml", "lt: 25", "lt: $weight_noise")
    edit(folder / "U001.yaml", "[keep-layers-float]", "[ask-vendor]")
    done = call("--test-rules", folder)
    assert (done.exit_code, "0 warnings" in done.output) == (0, True), done.output


def test_facts_are_listed_by_scope_and_word() -> None:
    done = call("--list", "facts", "--scope", "layer")
    assert "weight.channel_range_ratio" in done.output
    assert not [line for line in done.output.splitlines() if line.startswith("model.")]
    done = call("--list", "facts", "blank")
    assert "dataset  blank_share" in done.output
    assert "weight.channel_range_ratio" not in done.output


@pytest.mark.thorough
def test_list_still_stands_without_a_subcommand(folder: Path) -> None:
    assert "bias-overflow" in call("--list", "rules").output
    assert "U001  medium  layer    noisy-weights" in call("--list", "rules", "--rules", folder).output
    assert "weight_channel_range_ratio" in call("--list", "thresholds").output


@pytest.mark.thorough
def test_rule_on_the_manual_page_passes(tmp_path: Path) -> None:
    """The rule that is shown loads, can fire, agrees with its examples, and is short."""
    text = MANUAL.read_text(encoding="utf-8")
    (rule,) = re.findall(r"^```yaml\n(id: .*?)^```", text, re.M | re.S)
    (page,) = re.findall(r"^```markdown\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "U001.yaml").write_text(rule)
    (tmp_path / "U001.md").write_text(page)
    base, own, remarks = lint_rules([tmp_path])
    (tested,) = run_examples(base, own)
    assert (remarks, tested.failed, len(tested.outcomes)) == ([], 0, 2)
    assert len((rule + page).splitlines()) <= 30


@pytest.mark.thorough
def test_commands_on_the_manual_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = MANUAL.read_text(encoding="utf-8").partition("## The commands")[2].partition("\n## ")[0]
    commands = re.findall(r"^quantmedic explain (.*?)(?:\s+#.*)?$", section, re.M)
    assert [command.split()[0] for command in commands] == ["--new-rule", "--list", "--test-rules"]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        done = call(*command.split())
        assert done.exit_code == 0, done.output
