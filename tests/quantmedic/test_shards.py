"""Shards on the command line: measured by processes that know nothing of each other, then judged as one."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.commands import run_quantmedic

import quantmedic
from quantmedic.api.shards import load_shards
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.demo import patient
from quantmedic.engine.errors import CaseError

pytestmark = pytest.mark.thorough

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


@pytest.mark.nightly
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
    report = run_quantmedic("diagnose", *map(str, sorted((folder / "shards").glob("*.case"))), "-o", str(folder / "r"))
    assert report.returncode == 0 and "200 labelled" in " ".join(report.stdout.split())
    by_folder = run_quantmedic("diagnose", str(folder / "shards"), "-o", str(folder / "r"))
    assert (by_folder.returncode, by_folder.stdout) == (0, report.stdout)


@pytest.mark.nightly
def test_shards_of_other_options_are_told_apart_from_an_interrupted_run(folder, whole, tmp_path):
    assert run_quantmedic("collect", *options(folder), "--shard", "1/1", "-o", str(tmp_path / "1.case")).returncode == 0
    shards = ["--shards", str(tmp_path), "--operator-error", "-o", str(tmp_path / "all/a.case")]
    found = run_quantmedic("collect", *options(folder), *shards)
    assert found.returncode == 2 and "what was measured before was measured with other options" in found.stderr
    assert "without --resume or --shards" in " ".join(found.stderr.split())


@pytest.mark.nightly
def test_several_whole_cases_are_no_shards(folder, whole, tmp_path):
    for name in ("one", "two"):
        shutil.copy(whole, tmp_path / f"{name}.case")
    found = run_quantmedic("collect", *options(folder), "--shards", str(tmp_path), "-o", str(folder / "none.case"))
    assert found.returncode == 2 and "a case among the shards is none of them" in found.stderr


def test_a_shard_that_is_none_is_refused(folder, tmp_path):
    for shard, words in (
        ("0/4", "write number/count"),
        ("5/4", "write number/count"),
        ("x", "write number/count"),
        ("3", "this is not how a shard is written --shard 3"),
    ):
        found = run_quantmedic("collect", *options(folder), "--shard", shard, "-o", str(tmp_path / "1.case"))
        assert found.returncode == 2 and words in " ".join(found.stderr.split())


def images(count: int, divisor: float = 255) -> dict[str, Any]:
    with np.load(patient()[1]["validation"]) as stored:
        return {
            "image": stored["image"][:count].astype(np.float32) / np.float32(divisor),
            "labels": stored["labels"][:count],
        }


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[str, Path]:
    """The same samples in two files, and others of the same shape, name or beginning."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "alt").mkdir()
    late = images(200)
    late["image"][150] = 0
    contents = {"val.npz": images(200), "val_b.npz": images(200, 254), "alt/val.npz": images(200, 254)}
    contents |= {
        "few.npz": images(36),
        "late.npz": late,
        "labels.npz": images(200) | {"labels": np.zeros(200, np.int64)},
    }
    for name, arrays in contents.items():
        np.savez(folder / name, **arrays)
    (folder / "copy").mkdir()
    np.savez_compressed(folder / "copy/val.npz", **images(200))
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.npz")}


def collect_shard(path: Path, validation: Path, shard: str, **more: Any) -> Path:
    models = more.pop("models", patient()[0])
    quantmedic.save_case(quantmedic.collect(*models, validation=validation, shard=shard, threads=1, **more), path)
    return path


@pytest.fixture(scope="module")
def shards(sets, tmp_path_factory) -> list[Path]:
    """All three shards of one set."""
    folder = tmp_path_factory.mktemp("three")
    return [collect_shard(folder / f"{k}.case", sets["val.npz"], f"{k}/3") for k in (1, 2, 3)]


def test_what_is_no_set_of_shards_is_refused(sets, shards, whole, tmp_path):
    odd = collect_shard(tmp_path / "2.case", sets["val.npz"], "2/3", seed=3, attribution=False)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(shards[1], alone / "quantmedic.case")
    one, two, three = shards
    for given, words in (
        ([one, three], "1 of 3 shards are missing 2/3"),
        ([alone], "2 of 3 shards are missing 1/3, 3/3"),
        ([one], "2 of 3 shards are missing 2/3, 3/3"),
        ([one, odd, three], "different seed"),
        ([one, one, three], "shard 1/3 is given twice"),
        ([one, three, whole], "a case among the shards is none of them"),
    ):
        with pytest.raises(CaseError) as caught:
            quantmedic.load_case(*given)
        assert words in " ".join(str(caught.value).split())
    by_folder = load_shards([one, alone, three])
    assert by_folder.record == load_shards(shards).record == load_shards([two, one, three]).record


@pytest.mark.nightly
def test_a_shard_of_other_data_is_named(sets, shards, tmp_path):
    for name, number in (("val_b.npz", 2), ("alt/val.npz", 1), ("few.npz", 3), ("late.npz", 1), ("labels.npz", 3)):
        odd = collect_shard(tmp_path / "odd.case", sets[name], f"{number}/3")
        given = [*shards[: number - 1], odd, *shards[number:]]
        with pytest.raises(CaseError, match="the shards were measured on different validation data") as caught:
            load_shards(given)
        usual, *others = caught.value.where
        assert [line.partition(": ")[0] for line in others] == [str(odd)] and sets[name].name in others[0]
        assert usual.startswith(str(given[1 if number == 1 else 0])) and "val.npz, 200 samples" in usual


def test_shards_of_other_data_than_are_given_are_refused(sets, shards):
    with pytest.raises(CaseError, match="the shards were measured on other validation data") as caught:
        quantmedic.collect(*patient()[0], validation=sets["late.npz"], shards=shards, threads=1)
    assert str(shards[0]) in caught.value.where[0] and "late.npz" in caught.value.where[1]


def test_where_data_lie_and_how_they_are_compressed_does_not_matter(sets, shards, tmp_path):
    again = collect_shard(tmp_path / "again.case", sets["copy/val.npz"], "2/3")
    merged = quantmedic.load_case(shards[0], again, shards[2])
    assert (
        merged.statistics["validation"].samples.tobytes()
        == load_shards(shards).statistics["validation"].samples.tobytes()
    )
    assert not {"shard", "shard_data"} & merged.record.run.keys()


def test_one_shard_that_holds_all_samples_is_a_whole_case(sets, tmp_path):
    parts = [collect_shard(tmp_path / f"{k}.case", sets["few.npz"], f"{k}/2") for k in (1, 2)]
    assert [bool(read_case(part).statistics) for part in parts] == [False, True]
    assert "shard" not in quantmedic.load_case(tmp_path).record.run


@pytest.mark.nightly
def test_a_shard_of_other_models_or_options_is_named(sets, shards, tmp_path):
    for more, words in (
        ({"batch_size": 3}, "measured with different batch size"),
        ({"metric": "top5"}, "different settings"),
        ({"models": patient(healthy=True)[0]}, "belong to different quantized models"),
    ):
        odd = collect_shard(tmp_path / "odd.case", sets["val.npz"], "2/3", **more)
        with pytest.raises(CaseError, match=words) as caught:
            quantmedic.load_case(shards[0], odd, shards[2])
        assert any(str(odd) in line for line in caught.value.where) and caught.value.help


def test_a_shard_without_one_of_the_sets_is_named(sets, shards, tmp_path):
    odd = collect_shard(tmp_path / "odd.case", sets["val.npz"], "2/3", representative=sets["val.npz"])
    with pytest.raises(CaseError, match="different representative data") as caught:
        quantmedic.load_case(shards[0], odd, shards[2])
    assert caught.value.where[0] == f"{shards[0]}: none" and caught.value.where[1].startswith(f"{odd}: val.npz")


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_an_interrupted_shard_goes_on(mode, sets, tmp_path):
    path, own = tmp_path / "2.case", {"mode": mode, "validation": sets["val.npz"], "threads": 1, "batch_size": 8}

    def progress(stage: str, done: int, total: int | None) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantmedic.collect(*patient()[0], shard="2/3", checkpoint=path, progress=progress, **own)
    for other in ("1/3", "3/3"):
        with pytest.raises(CaseError, match="another part of the validation data"):
            quantmedic.collect(*patient()[0], shard=other, checkpoint=path, resume=True, **own)
    with pytest.raises(CaseError, match="other validation data"):
        changed = own | {"validation": sets["alt/val.npz"]}
        quantmedic.collect(*patient()[0], shard="2/3", checkpoint=path, resume=True, **changed)
    expected = quantmedic.collect(*patient()[0], shard="2/3", **own)
    for _ in ("unfinished", "finished"):
        found = quantmedic.collect(*patient()[0], shard="2/3", checkpoint=path, resume=True, **own)
        assert found.record == expected.record
        samples = [case.statistics["validation"].samples.tobytes() for case in (found, expected)]
        assert samples[0] == samples[1]
        quantmedic.save_case(found, path)


def test_a_shard_of_few_samples_says_that_it_is_empty(folder, tmp_path):
    few = [*options(folder), "--samples", "40", "--shard", "1/2", "-o", str(tmp_path / "1.case")]
    found = run_quantmedic("collect", *few)
    assert found.returncode == 0 and "it holds no samples: a slice has at least 64" in found.stdout


def test_who_judges_does_not_measure_one_shard(folder):
    for command in ("diagnose", "check", "fix"):
        found = run_quantmedic(command, *options(folder), "--shard", "1/3")
        assert found.returncode == 2 and "quantmedic collect … --shard K/N" in " ".join(found.stderr.split())
        assert "--shard " not in run_quantmedic(command, "--help").stdout


def test_a_shard_that_lacks_its_part_is_named(shards, tmp_path):
    case = read_case(shards[1])
    empty = replace(case, record=case.record.model_copy(update={"datasets": {}}), statistics={}, sums={})
    quantmedic.save_case(empty, tmp_path / "odd.case")
    with pytest.raises(CaseError, match="some of the validation data were not measured") as caught:
        quantmedic.load_case(shards[0], tmp_path / "odd.case", shards[2])
    assert caught.value.where == (str(tmp_path / "odd.case"),)
