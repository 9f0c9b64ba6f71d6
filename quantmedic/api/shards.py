"""Shards: a measurement in parts that know nothing of each other, each a case file of its own."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quantmedic.api.cases import SHARD, case_path, merge_cases, require_all_shards
from quantmedic.collectors.measure.case_file import read_case
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, DataError


def read_shard(shard: str | tuple[int, int]) -> tuple[int, int]:
    """Number, from 1, and count of shards.

    Raises:
        DataError: It is not of the form 3/16, or its number is not between 1 and the count.
    """
    parts = re.fullmatch(r"(\d+)/(\d+)", shard) if isinstance(shard, str) else None
    number, count = (int(parts[1]), int(parts[2])) if parts else (0, 0) if isinstance(shard, str) else shard
    if not 1 <= number <= count:
        raise DataError(
            "there is no such shard",
            where=f"--shard {shard}",
            help="write number/count, such as --shard 3/16, with numbers from 1 to the count",
        )
    return number, count


def as_shard(case: Case, number: int, count: int) -> Case:
    """The case, which says what it is a shard of."""
    run = {**case.record.run, SHARD: f"{number}/{count}"}
    return replace(case, record=case.record.model_copy(update={"run": run}))


def load_shards(source: str | Path | Sequence[str | Path]) -> Case:
    """All shards of one measurement, added up.

    Args:
        source: The folder that holds their case files, or these, or folders of reports, which hold their case.

    Raises:
        CaseError: There are none, one cannot be read or is missing, or they do not belong together.
    """
    paths = sorted(Path(source).glob("*.case")) if isinstance(source, str | Path) else [Path(path) for path in source]
    if not paths:
        raise CaseError(
            "there are no shards", where=f"{source}", help="write them with: quantmedic collect --shard 1/4"
        )
    cases = [read_case(case_path(path)) for path in paths]
    require_all_shards(paths, cases)
    case = merge_cases(cases)
    for role, found in case.record.datasets.items():
        if not found.complete:
            held = {k for own in case.sums.get(role, ()) for k in range(own.first, own.stop)}
            missing = [k for k in range(found.slices) if k not in held]
            raise CaseError(
                f"some of the {role} data were not measured",
                where=f"{len(paths)} shards, {len(missing)} of {found.slices} slices are missing, first {missing[:1]}",
                help="measure the shards that are missing; all need the same --shard …/COUNT and options",
            )
    return case
