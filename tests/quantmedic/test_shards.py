"""Shards on the command line: measured by processes that know nothing of each other, then judged as one."""

import shutil

import numpy as np
import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.api.shards import load_shards
from quantmedic.demo import patient

COUNT = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo's models and its validation data as the network wants them."""
    folder = tmp_path_factory.mktemp("shards")
    with np.load(patient()[1]["validation"]) as stored:
        np.savez(folder / "val.npz", image=stored["image"].astype(np.float32) / 255, labels=stored["labels"])
    return folder


def options(folder):
    return [*map(str, patient()[0]), "-v", str(folder / "val.npz"), "--samples", "200", "--threads", "1"]


@pytest.fixture(scope="module")
def whole(folder):
    """A case of all samples, which is no shard."""
    path = folder / "whole.case"
    assert run_quantmedic("collect", *options(folder), "-o", str(path)).returncode == 0
    return path


def test_shards_are_one_measurement(folder, whole):
    for number in range(1, COUNT + 1):
        shard = ["--shard", f"{number}/{COUNT}", "-o", str(folder / f"shards/{number}.case")]
        assert run_quantmedic("collect", *options(folder), *shard).returncode == 0
    merged = ["--shards", str(folder / "shards"), "-o", str(folder / "merged.case")]
    assert run_quantmedic("collect", *options(folder), *merged).returncode == 0
    one, other = (quantmedic.load_case(path) for path in (whole, folder / "merged.case"))
    assert one.record == other.record
    columns = one.statistics["validation"].columns
    assert all(np.array_equal(columns[name], other.statistics["validation"].columns[name]) for name in columns)
    report = run_quantmedic("report", *map(str, sorted((folder / "shards").glob("*.case"))), "-o", str(folder / "r"))
    assert report.returncode == 0 and "200 labelled" in report.stdout
    by_folder = run_quantmedic("report", str(folder / "shards"), "-o", str(folder / "r"))
    assert (by_folder.returncode, by_folder.stdout) == (0, report.stdout)


def test_shards_of_other_options_are_told_apart_from_an_interrupted_run(folder, whole, tmp_path):
    assert run_quantmedic("collect", *options(folder), "--shard", "1/1", "-o", str(tmp_path / "1.case")).returncode == 0
    shards = ["--shards", str(tmp_path), "--operator-error", "-o", str(tmp_path / "all/a.case")]
    found = run_quantmedic("collect", *options(folder), *shards)
    assert found.returncode == 2 and "what was measured before was measured with other options" in found.stderr
    assert "without --resume or --shards" in " ".join(found.stderr.split())


def test_a_missing_shard_is_said(folder, tmp_path):
    shard = ["--shard", "1/2", "-o", str(tmp_path / "1.case")]
    assert run_quantmedic("collect", *options(folder), *shard).returncode == 0
    found = run_quantmedic("collect", *options(folder), "--shards", str(tmp_path), "-o", str(tmp_path / "all.case"))
    assert found.returncode == 2 and "1 of 2 shards are missing 2/2" in " ".join(found.stderr.split())
    for alone in (tmp_path, tmp_path / "1.case"):
        found = run_quantmedic("report", str(alone), "-o", str(tmp_path / "r"))
        assert found.returncode == 2 and "1 of 2 shards are missing 2/2" in " ".join(found.stderr.split())


def test_several_whole_cases_are_no_shards(folder, whole, tmp_path):
    for name in ("one", "two"):
        shutil.copy(whole, tmp_path / f"{name}.case")
    found = run_quantmedic("collect", *options(folder), "--shards", str(tmp_path), "-o", str(folder / "none.case"))
    assert found.returncode == 2 and "a case among the shards is none of them" in found.stderr


def test_a_shard_may_be_named_by_the_folder_that_holds_it(folder, tmp_path):
    places = [tmp_path / str(number) for number in (1, 2)]
    for number, place in enumerate(places, 1):
        place.mkdir()
        shard = ["--shard", f"{number}/2", "-o", str(place / "quantmedic.case")]
        assert run_quantmedic("collect", *options(folder), *shard).returncode == 0
    by_folder, by_file = load_shards(places), load_shards([place / "quantmedic.case" for place in places])
    assert by_folder.record == by_file.record


@pytest.mark.parametrize("shard", ["0/4", "5/4", "x"])
def test_a_shard_that_is_none_is_refused(folder, shard, tmp_path):
    found = run_quantmedic("collect", *options(folder), "--shard", shard, "-o", str(tmp_path / "1.case"))
    assert found.returncode == 2 and "write number/count" in found.stderr


def test_what_is_no_set_of_shards_is_refused_by_the_report_too(folder, whole, tmp_path):
    for number, more in ((1, []), (2, ["--seed", "3"]), (3, [])):
        shard = ["--shard", f"{number}/3", "-o", str(tmp_path / f"{number}.case"), "--no-attribution", *more]
        assert run_quantmedic("collect", *options(folder), *shard).returncode == 0
    one, odd, other = (str(tmp_path / f"{k}.case") for k in (1, 2, 3))
    for given, words in (
        ([one, other], "1 of 3 shards are missing 2/3"),
        ([one, odd, other], "different seed"),
        ([one, one, other], "shard 1/3 is given twice"),
        ([one, other, str(whole)], "a case among the shards is none of them"),
    ):
        found = run_quantmedic("report", *given, "-o", str(tmp_path / "r"))
        assert found.returncode == 2
        assert words in " ".join(found.stderr.split()), found.stderr
