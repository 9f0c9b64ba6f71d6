"""``quantmedic show``: the tables of a case in the terminal."""

import csv
import io
import os
import subprocess
from pathlib import Path

import pytest
from builders.commands import run_quantmedic

pytestmark = pytest.mark.thorough


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_quantmedic("show", *arguments, env={**os.environ, **environment})


@pytest.mark.source("insights-terminal")
def test_it_prints_plain_text_of_a_hundred_columns(patient_case: Path) -> None:
    done = run(patient_case)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("27 layers, in the order of the network\n") and "/stem/conv/Conv" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100 and "\x1b" not in done.stdout


@pytest.mark.source("insights-activation-table", "litert-sorted")
def test_it_sorts_filters_and_limits(patient_case: Path) -> None:
    done = run(
        patient_case,
        *("--columns", "name,accumulated.mse", "--sort", "accumulated.mse:desc", "--limit", 2, "--filter", "conv"),
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.endswith("by accumulated error, validation: MSE, largest first") and " more (--limit " in last
    values = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("/")]
    assert len(values) == 2 and values[0] >= values[1]


@pytest.mark.nightly
@pytest.mark.source("insights-one-operator")
def test_one_layer_the_data_sets_and_ascii(patient_case: Path) -> None:
    done = run(patient_case, "--layer", "/stem/conv/Conv", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.isascii() and "weight.quantizer.scale" in done.stdout
    done = run(patient_case, "--table", "data-sets")
    assert done.returncode == 0 and "representative  validation" in done.stdout


@pytest.mark.nightly
@pytest.mark.source("insights-channel-histograms")
def test_each_channel_of_the_weights_has_a_histogram(patient_case: Path) -> None:
    done = run(patient_case, "--layer", "/stem/conv/Conv")
    assert done.returncode == 0, done.stderr
    *_, drawn = done.stdout.partition("weights by output channel, each a histogram from ")
    heads, first, *_ = drawn.splitlines()[1:]
    assert heads.split() == ["channel", "min", "max", "SQNR", "dB", "float", "weights"]
    assert "█" in first and max(map(len, drawn.splitlines())) <= 100
    plain = run(patient_case, "--layer", "/stem/conv/Conv", PYTHONIOENCODING="ascii").stdout
    assert plain.isascii() and "#" in plain.partition("weights by output channel")[2]


@pytest.mark.source("insights-tables-as-files")
def test_csv_goes_to_a_file_or_to_the_output(patient_case: Path, tmp_path: Path) -> None:
    done = run(patient_case, "--table", "all", "--csv", tmp_path / "layers.csv", "--limit", 3)
    assert done.returncode == 0 and "(27 layers)" in done.stdout
    text = (tmp_path / "layers.csv").read_text(encoding="utf-8")
    keys, *lines = csv.reader(io.StringIO(text))
    assert len(lines) == 27 and "output.representative.accumulated.mse" in keys
    assert run(patient_case, "--table", "all", "--csv", "-").stdout == text
    refused = run(patient_case, "--csv", tmp_path / "layers.csv" / "more.csv")
    assert refused.returncode == 2 and "cannot write the table" in refused.stderr


def test_a_slip_is_exit_code_2_and_named(patient_case: Path) -> None:
    for options, said in (
        (("--columns", "op_typ"), "did you mean op_type?"),
        (("--table", "activation"), "did you mean activations?"),
        (("--layer", "/stem/conv/Con"), "did you mean /stem/conv/Conv"),
        (("--sort", "name:up"), "KEY:desc"),
    ):
        done = run(patient_case, *options)
        assert done.returncode == 2 and said in done.stderr and done.stderr.startswith("error: ")
