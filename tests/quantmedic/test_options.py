"""Every command has the options that make sense for it, under one name and with one meaning."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import quantmedic
from quantmedic.api.arguments import CollectArguments
from quantmedic.cli.main import COMMANDS, cli
from quantmedic.cli.values import size
from quantmedic.demo import patient
from quantmedic.engine.errors import CaseError, ModelError

#: Options whose help names what the command writes or prints.
SAID_PER_COMMAND = {"--output", "-o", "--format", "--quiet", "-q", "--verbose"}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


def options_of(command: click.Command) -> dict[str, click.Option]:
    return {p.name: p for p in command.params if isinstance(p, click.Option) and p.name is not None}


def test_commands_are_few_and_short() -> None:
    """At most eleven commands, of 200 options in all, the help of each on one screen; ``--help-all`` has the rest."""
    found = dict(commands())
    assert len(found) <= 11 and sum(len(options_of(command)) for command in found.values()) <= 200
    for name, command in found.items():
        short, whole = (
            CliRunner().invoke(cli, [name, flag], terminal_width=100).output for flag in ("--help", "--help-all")
        )
        assert len(short.splitlines()) <= 40, name
        assert all(option.opts[0] in whole for option in options_of(command).values()), name


def test_an_option_has_one_meaning() -> None:
    meanings = defaultdict(lambda: defaultdict(list))
    for name, command in commands():
        for option in options_of(command).values():
            for word in (*option.opts, *option.secondary_opts):
                if word not in SAID_PER_COMMAND:
                    meanings[word][option.help, str(option.type), option.multiple].append(name)
    assert not {word: dict(found) for word, found in meanings.items() if len(found) > 1}


def test_python_explains_every_option() -> None:
    assert quantmedic.collect.__doc__ is not None
    assert {
        name for name in CollectArguments.__annotations__ if f"        {name}: " not in quantmedic.collect.__doc__
    } == set()


def test_an_argument_with_a_wrong_name_is_refused_with_the_right_one() -> None:
    for function in (quantmedic.collect, quantmedic.diagnose, quantmedic.fix):
        with pytest.raises(TypeError, match=r"'scale': give preprocessing=quantmedic.Preprocessing\(scale=…\)"):
            function("float.onnx", "int8.onnx", scale=255)
        with pytest.raises(TypeError, match="'metrik'; is it 'metric'"):
            function("float.onnx", "int8.onnx", metrik="top1")


def test_the_list_of_commands_needs_none_of_them() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    for name, command in COMMANDS.items():
        assert f"  {name}" in text and command.help in text
        assert len(command.help) < 66, "the help is at most 80 columns wide"
    assert next(iter(commands()))[0] == "demo"


#: Commands with a value that cannot be, and what is said about it.
WRONG_VALUES = {
    "diagnose a b --prove --budget soon": "'soon' is not a valid duration, e.g. 90s or 5m",
    "collect a b --memory much": "'much' is not a valid size, e.g. 2GB, 500MB or 512MiB",
    f"collect a b --memory {'9' * 400}": "is not a valid size",
    f"collect a b --timeout {'9' * 400}": "is not a valid duration",
    "check a b --today now": "'now' is not a valid date, e.g. 2026-11-30",
    "diagnose a b --no-prove --budget 5m": "--budget is the time for --prove; leave out --no-prove",
    "search fallback a b --format text --format json": "several formats need a folder",
    "search fallbak a b": "Did you mean 'fallback'?",
}


def test_wrong_values() -> None:
    for line, message in WRONG_VALUES.items():
        done = CliRunner().invoke(cli, line.split())
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())


def test_a_misspelt_model_is_hinted_at() -> None:
    (source, quantized), _ = patient()
    with pytest.raises(ModelError, match=rf"did you mean {source}\?"):
        quantmedic.collect(source.with_name("flaot.onnx"), quantized, validation={"image": np.zeros((1, 28, 28))})


SIZES = {
    "1000": 1000,
    "512b": 512,
    "3 kB": 3000,
    "463MiB": 463 << 20,
    "463 MiB": 463 << 20,
    "2GB": 2 * 10**9,
    "1.5g": 1_500_000_000,
    "2GiB": 2 << 30,
    "1TB": 10**12,
    "1Ti": 1 << 40,
}


def test_sizes_are_decimal_or_binary() -> None:
    assert {text: size(text) for text in SIZES} == SIZES
    for text in ("1EB", "i", "1 iB", "1e9", "-1GB", "0", "1GBs"):
        with pytest.raises(click.BadParameter):
            size(text)


def test_the_help_shows_the_default_of_the_time_limit() -> None:
    text = " ".join(CliRunner().invoke(cli, ["collect", "--help-all"]).output.split())
    assert "opening it counts as one. 0 or never: no limit. [default: 10m]" in text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report of the patient, which was not run."""
    path = tmp_path_factory.mktemp("folder") / "report"
    case = quantmedic.collect_static(*patient()[0])
    quantmedic.write_report(quantmedic.judge(case), path, formats=["json"], case=case)
    return path


class TestFolderOfAReport:
    """It is accepted wherever a case is."""

    @pytest.mark.nightly
    def test_commands(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("calibration.cache").write_text("TRT-8601-EntropyCalibration2\nimages: 3c010a14\n", encoding="utf-8")
        for line in (
            "diagnose CASE --previous CASE --format json",
            "show CASE",
            "compare CASE CASE",
            "check CASE --warn-only --baseline CASE",
            "check CASE --write-baseline known.json",
            "import CASE calibration.cache -o merged.case",
        ):
            by_folder, by_file = (
                CliRunner().invoke(cli, [str(case) if word == "CASE" else word for word in line.split()])
                for case in (folder, folder / "quantmedic.case")
            )
            assert by_folder.exit_code == by_file.exit_code == 0, by_folder.output
            assert by_folder.output == by_file.output

    @pytest.mark.thorough
    def test_functions(self, folder: Path) -> None:
        case = quantmedic.load_case(folder)
        assert case.record == quantmedic.load_case(folder / "quantmedic.case").record
        assert quantmedic.compare(folder, case) == quantmedic.compare(case, folder)
        assert quantmedic.check(folder, baseline=folder).check == quantmedic.check(case, baseline=folder).check

    def test_a_folder_without_a_case(self, tmp_path: Path) -> None:
        with pytest.raises(CaseError, match="case"):
            quantmedic.load_case(tmp_path)


@pytest.mark.thorough
def test_calibration_data_are_read_where_no_others_are_given() -> None:
    models, data = patient()
    with np.load(data["validation"]) as file:
        images = file[file.files[0]][:4]
    role = {"representative": data["preprocessing"]["validation"]}
    rows = [
        quantmedic.search("debugger", *models, representative=images, preprocessing=role).layers,
        quantmedic.search(
            "debugger", *models, validation=images, preprocessing=data["preprocessing"]["validation"]
        ).layers,
    ]
    assert rows[0] == rows[1]
