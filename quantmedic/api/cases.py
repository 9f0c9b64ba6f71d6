"""Cases: read from files, written to files, and changed by one entry."""

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quantmedic.collectors.measure.case_file import read_case, write_case
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError

#: Entry of the run record: which shard a case is, and those that are equal in all shards.
SHARD = "shard"
_EQUAL = ("preprocessing", "samples", "mode", "operator_error", "step_error", "seed", "device")
#: Missing shards that an error names.
MAX_NAMED = 8
#: Name of the case in the folder of a report.
CASE_FILE = "quantmedic.case"
#: Ending of a case beside the finished one that it is to replace.
UNFINISHED = ".unfinished.case"


def case_path(path: str | Path) -> Path:
    """The file of a case: the path itself, or the case in a folder, such as that of a report."""
    path = Path(path)
    return path / CASE_FILE if path.is_dir() else path


def unfinished_path(path: Path) -> Path:
    """Beside a finished case: what an interrupted run that was to replace it has measured."""
    return path.with_suffix(UNFINISHED)


def case_paths(path: str | Path) -> list[Path]:
    """The files that a path names: its case, or all in a folder of shards, which is not that of a report."""
    one = case_path(path)
    if one == Path(path) or one.exists():
        return [one]
    return sorted(file for file in Path(path).glob("*.case") if not file.name.endswith(UNFINISHED)) or [one]


def is_case(path: Path) -> bool:
    """The path is a case file, by its name or its content, or a folder with a case in it."""
    if path.is_dir():
        return (path / CASE_FILE).is_file()
    return path.suffix == ".case" or (path.is_file() and zipfile.is_zipfile(path))


def save_case(case: Case, path: str | Path) -> None:
    """Save a case to one file (zip of JSON and arrays); in a folder, under the name that a report gives it."""
    write_case(case, case_path(path))


def load_case(*paths: str | Path) -> Case:
    """Open a case; several shards of the same models are merged as if measured in one pass.

    Args:
        paths: Case files, folders of reports, which hold their case, or folders of shards.

    Raises:
        CaseError: A file cannot be read, or the shards do not belong together.
    """
    files = [file for path in paths for file in case_paths(path)]
    cases = [read_case(file) for file in files]
    if any(SHARD in case.record.run for case in cases):
        require_all_shards(files, cases)
    return merge_cases(cases)


def merge_cases(cases: Sequence[Case]) -> Case:
    """One case as if all were measured in one pass.

    Raises:
        CaseError: They do not belong together.
    """
    # Of few samples there may be less than one slice for each shard.
    filled = [case for case in cases if case.statistics or SHARD not in case.record.run]
    case, *more = filled or cases[:1]
    for each in more:
        case = case.merge(each)
    return case


def require_all_shards(paths: Sequence[str | Path], cases: Sequence[Case]) -> None:
    """Refuse cases that are not all shards of one measurement, each of them once.

    Raises:
        CaseError: Names the file that does not belong to them, or the shards that are missing.
    """
    first, known = cases[0].record.run, dict[str, str | Path]()
    for path, case in zip(paths, cases, strict=True):
        shard, run = case.record.run.get(SHARD), case.record.run
        if not isinstance(shard, str):
            raise CaseError("a case among the shards is none of them", where=str(path), help="leave it out")
        if shard in known:
            raise CaseError(
                f"shard {shard} is given twice", where=[str(known[shard]), str(path)], help="give each shard once"
            )
        known[shard] = path
        for name in _EQUAL:
            if run.get(name) != first.get(name):
                raise CaseError(
                    f"the shards were measured with different {name.replace('_', ' ')}",
                    where=[f"{paths[0]}: {first.get(name)}", f"{path}: {run.get(name)}"],
                    help="collect all of them with the same options",
                )
    counts = {shard.partition("/")[2] for shard in known}
    if len(counts) > 1:
        raise CaseError(
            "the shards are parts of different numbers of shards",
            where=", ".join(sorted(known)),
            help="collect all of them with the same --shard …/COUNT",
        )
    count = int(counts.pop())
    missing = [f"{k}/{count}" for k in range(1, count + 1) if f"{k}/{count}" not in known]
    if missing:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        raise CaseError(
            f"{len(missing)} of {count} shards are missing",
            where=", ".join(missing[:MAX_NAMED]) + more,
            help=f"measure them with: quantmedic collect … --shard {missing[0]}",
        )


def with_notice(case: Case, *notices: str) -> Case:
    """The case with more that the user should know."""
    return replace(case, record=case.record.model_copy(update={"notices": (*case.record.notices, *notices)}))
