"""Cases: read from files, written to files, and changed by one entry."""

import secrets
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, OutputError

#: Name of the case in the folder of a report.
CASE_FILE = "quantmedic.case"
#: Ending of a case beside the finished one that it is to replace.
UNFINISHED = ".unfinished.case"


def case_path(path: str | Path) -> Path:
    """The file of a case: the path itself, or the case in a folder, such as that of a report.

    A link that is named like a case is taken for one: whoever put it into an output folder may mean another folder.
    """
    path = Path(path)
    is_linked = path.suffix == ".case" and path.is_symlink()
    return path / CASE_FILE if path.is_dir() and not is_linked else path


def unfinished_path(path: Path) -> Path:
    """Beside a finished case: what an interrupted run that was to replace it has measured."""
    return path.with_suffix(UNFINISHED)


def work_folder(path: Path) -> Path:
    """Beside a case: what an interrupted run of language models has finished."""
    return path.with_name(f"{path.name.removesuffix('.case').removesuffix('.unfinished')}.unfinished.run")


def is_case(path: Path) -> bool:
    """The path is a case file, by its name or its content, or a folder with a case in it."""
    if path.is_dir():
        return (path / CASE_FILE).is_file()
    return path.suffix == ".case" or (path.is_file() and zipfile.is_zipfile(path))


def save_case(case: Case, path: str | Path) -> None:
    """Save a case to one file (zip of JSON and arrays); in a folder, under the name that a report gives it.

    Raises:
        CaseError: The file cannot be written, or is a link.
    """
    write_case(case, case_path(path))


@contextmanager
def kept_where_there_is_room(case: Case, command: str = "diagnose") -> Iterator[None]:
    """Context that writes what was just measured; on a full disk the case goes to the temporary files instead.

    Measuring may have taken hours. ``command`` is what writes the output from the case.

    Raises:
        CaseError, OutputError: Of what could not be written; the help says where the case is.
    """
    try:
        yield
    except (CaseError, OutputError) as error:
        if (place := _keep_among_temporary_files(case)) is not None:
            error.help = (
                f"what was measured is kept in the case {place}: nothing has to be measured again\n"
                f"write the output elsewhere with: quantmedic {command} {place} -o FOLDER"
            )
        raise


def _keep_among_temporary_files(case: Case) -> Path | None:
    place = Path(tempfile.gettempdir(), f"quantmedic-{secrets.token_hex(8)}.case")
    try:
        write_case(case, place)
    except CaseError:  # there is no room here either
        return None
    return place


def load_case(*paths: str | Path) -> Case:
    """Open a case; those of several parts of the data are merged as if measured in one pass.

    Args:
        paths: Case files, or folders of reports, which hold their case.

    Raises:
        CaseError: A file cannot be read, or they do not belong together; names the first that does not fit.
    """
    files = list(map(case_path, paths))
    merged = read_case(files[0])
    for file in files[1:]:
        try:
            merged = merged.merge(read_case(file))
        except CaseError as error:
            raise CaseError(error.message, where=[f"{file}, after {files[0]}", *error.where], help=error.help) from None
    return merged


def with_notice(case: Case, *notices: str) -> Case:
    """The case with more that the user should know; a finished case that is opened again knows it already."""
    known = dict.fromkeys((*case.record.notices, *notices))
    return case.with_record(notices=tuple(known))
