"""Cases: read from files, written to files, and changed by one entry."""

import zipfile
from dataclasses import replace
from pathlib import Path

from quantmedic.collectors.measure.case_file import read_case, write_case
from quantmedic.engine.case.records import Case

#: Name of the case in the folder of a report.
CASE_FILE = "quantmedic.case"


def case_path(path: str | Path) -> Path:
    """The file of a case: the path itself, or the case in a folder, such as that of a report."""
    path = Path(path)
    return path / CASE_FILE if path.is_dir() else path


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
        paths: Case files, or folders of reports, which hold their case.

    Raises:
        CaseError: A file cannot be read, or the shards do not belong together.
    """
    cases = [read_case(case_path(path)) for path in paths]
    # Of few samples there may be less than one slice for each shard.
    filled = [case for case in cases if case.statistics or "shard" not in case.record.run]
    case, *shards = filled or cases[:1]
    for shard in shards:
        case = case.merge(shard)
    return case


def with_notice(case: Case, *notices: str) -> Case:
    """The case with more that the user should know."""
    return replace(case, record=case.record.model_copy(update={"notices": (*case.record.notices, *notices)}))
