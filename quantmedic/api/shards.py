"""Shards: a measurement in parts that know nothing of each other, each a case file of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quantmedic.api.cases import SHARD, SHARD_DATA, case_path, data_text, merge_shards, parse_shard, shard_files
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, DataError


def read_shard(shard: str | tuple[int, int]) -> tuple[int, int]:
    """Number, from 1, and count of shards.

    Raises:
        DataError: It is not of the form 3/16, or its number is not between 1 and the count.
    """
    text = shard if isinstance(shard, str) else "/".join(map(str, shard))
    place = parse_shard(text)
    if place is None:
        written = "/" in text
        raise DataError(
            "there is no such shard" if written else "this is not how a shard is written",
            where=f"--shard {text}",
            help="write number/count, such as --shard 3/16, with numbers from 1 to the count",
        )
    return place


def as_shard(case: Case, number: int, count: int, datasets: Mapping[Role, Dataset]) -> Case:
    """The case, which says what it is a shard of, and of which data."""
    data = {role: describe_data(dataset) for role, dataset in datasets.items()}
    run = {**case.record.run, SHARD: f"{number}/{count}", SHARD_DATA: data}
    return replace(case, record=case.record.model_copy(update={"run": run}))


def describe_data(dataset: Dataset) -> dict[str, object]:
    """What all shards of one data set say of it, and others do not."""
    return {"origin": dataset.origin, "samples": dataset.samples, "fingerprint": dataset.fingerprint()}


def load_shards(source: str | Path | Sequence[str | Path], datasets: Mapping[Role, Dataset] | None = None) -> Case:
    """All shards of one measurement, added up.

    Args:
        source: The folder that holds their case files, or these, or folders of reports, which hold their case.
        datasets: The data that they have to be shards of, where these are known.

    Raises:
        CaseError: There are none, one cannot be read or is missing, or they do not belong together, or to the data.
    """
    paths = shard_files(Path(source)) if isinstance(source, str | Path) else [Path(path) for path in source]
    if not paths:
        raise CaseError(
            "there are no shards", where=f"{source}", help="write them with: quantmedic collect --shard 1/4"
        )
    files = [case_path(path) for path in paths]
    cases = [read_case(file) for file in files]
    merged = merge_shards(files, cases)
    _require_data(files[0], cases[0], datasets or {})
    return merged


def _require_data(file: Path, case: Case, datasets: Mapping[Role, Dataset]) -> None:
    """Refuse shards of other data, one of which stands for all.

    Raises:
        CaseError: Names it and what differs.
    """
    known = case.record.run.get(SHARD_DATA)
    for role, dataset in datasets.items():
        then, now = known.get(role) if isinstance(known, Mapping) else None, describe_data(dataset)
        if then is not None and then != now:
            raise CaseError(
                f"the shards were measured on other {role} data",
                where=[f"{file}: {data_text(then)}", f"given: {data_text(now)}"],
                help="give the same data, or measure anew: without --shards",
            )
