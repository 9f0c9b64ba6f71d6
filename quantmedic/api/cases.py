"""Cases: read from files, written to files, and changed by one entry."""

import re
import secrets
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.slice_sums import slices_of_shard
from quantmedic.engine.errors import CaseError, OutputError

#: Entries of the run record: which shard a case is, what tells its data from others, and those equal in all shards.
SHARD, SHARD_DATA = "shard", "shard_data"
_EQUAL = ("preprocessing", "samples", "batch_size", "mode", "operator_error", "step_error", "seed", "device")
#: Missing or odd shards that an error names.
MAX_NAMED = 8
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


def case_paths(path: str | Path) -> list[Path]:
    """The files that a path names: its case, or all in a folder of shards, which is not that of a report."""
    one = case_path(path)
    if one == Path(path) or one.exists():
        return [one]
    return shard_files(Path(path)) or [one]


def shard_files(folder: Path) -> list[Path]:
    """The cases in a folder of shards, but for unfinished work beside them."""
    return sorted(file for file in folder.glob("*.case") if not file.name.endswith(UNFINISHED))


def is_case(path: Path) -> bool:
    """The path is a case file, by its name or its content, or a folder with a case in it."""
    if path.is_dir():
        return (path / CASE_FILE).is_file()
    return path.suffix == ".case" or (path.is_file() and zipfile.is_zipfile(path))


def holds_case(path: Path) -> bool:
    """The path is a case, or a folder of shards."""
    return is_case(path) or (path.is_dir() and bool(shard_files(path)))


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
    """Open a case; several shards of the same models are merged as if measured in one pass.

    Args:
        paths: Case files, folders of reports, which hold their case, or folders of shards.

    Raises:
        CaseError: A file cannot be read, or the shards do not belong together.
    """
    files = [file for path in paths for file in _files_of(path)]
    cases = [read_case(file) for file in files]
    if any(SHARD in case.record.run for case in cases):
        return merge_shards(files, cases)
    return _merge(files, cases)


def _files_of(path: str | Path) -> list[Path]:
    """The files that a path names.

    Raises:
        CaseError: It is a folder without any.
    """
    files = case_paths(path)
    if Path(path).is_dir() and not files[0].exists():
        raise CaseError(
            "the folder holds no case",
            where=str(path),
            help="give a case file, the folder of a report, or a folder of shards (quantmedic collect --shard)",
        )
    return files


def merge_shards(files: Sequence[Path], cases: Sequence[Case]) -> Case:
    """One case as if all shards of one measurement had been measured in one pass.

    Raises:
        CaseError: They are not all shards of one measurement, each of them once; names the files that do not belong
            to them, or the shards that are missing.
    """
    places = _places(files, cases)
    _require_equal_runs(files, cases)
    _require_all(places)
    # Of few samples there may be less than one slice for each shard.
    filled = [place for place, case in enumerate(cases) if case.statistics] or [0]
    merged = _merge([files[place] for place in filled], [cases[place] for place in filled])
    _require_slices(places, files, cases, merged)
    run = {name: value for name, value in merged.record.run.items() if name not in (SHARD, SHARD_DATA)}
    return replace(merged, record=merged.record.model_copy(update={"run": run}))


def parse_shard(text: object) -> tuple[int, int] | None:
    """Number, from 1, and count of a shard that is written ``3/16``; None where there is no such shard."""
    parts = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if isinstance(text, str) else None
    number, count = (int(parts[1]), int(parts[2])) if parts else (0, 0)
    return (number, count) if 1 <= number <= count else None


def data_text(data: object) -> str:
    """What a shard says of one of its data sets, in a message; see ``shards.describe_data``."""
    if not isinstance(data, Mapping):
        return "none"
    return f"{data.get('origin')}, {data.get('samples')} samples, fingerprint {str(data.get('fingerprint'))[:12]}"


def _merge(files: Sequence[Path], cases: Sequence[Case]) -> Case:
    """One case as if all were measured in one pass.

    Raises:
        CaseError: They do not belong together; names the first file that does not fit those before it.
    """
    merged = cases[0]
    for file, case in zip(files[1:], cases[1:], strict=True):
        try:
            merged = merged.merge(case)
        except CaseError as error:
            raise CaseError(error.message, where=[f"{file}, after {files[0]}", *error.where], help=error.help) from None
    return merged


def _places(files: Sequence[Path], cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Number and count of each shard.

    Raises:
        CaseError: A case is none, or a shard is given twice, or they are parts of different numbers of shards.
    """
    known = dict[tuple[int, int], Path]()
    for file, case in zip(files, cases, strict=True):
        place = parse_shard(case.record.run.get(SHARD))
        if place is None:
            raise CaseError(
                "a case among the shards is none of them",
                where=str(file),
                help="leave it out; where it is a shard that was interrupted, repeat its command with --resume",
            )
        if place in known:
            raise CaseError(
                f"shard {place[0]}/{place[1]} is given twice",
                where=[str(known[place]), str(file)],
                help="give each shard once",
            )
        known[place] = file
    _require_equal(
        "the shards are parts of different numbers of shards",
        files,
        [(count, f"{number}/{count}") for number, count in known],
        "collect all of them with the same --shard …/COUNT",
    )
    return [*known]


def _require_equal_runs(files: Sequence[Path], cases: Sequence[Case]) -> None:
    """Refuse shards of different models or data, or measured with different options.

    Raises:
        CaseError: Names the files that differ from most.
    """
    runs = [case.record.run for case in cases]
    for kind in ("float", "quantized"):
        hashes = [run.get(f"{kind}_sha256") for run in runs]
        names = [f"{run.get(f'{kind}_model')}, sha256 {str(own)[:12]}" for run, own in zip(runs, hashes, strict=True)]
        _require_equal(
            f"the shards belong to different {kind} models",
            files,
            [*zip(hashes, names, strict=True)],
            "collect all of them with the same two models",
        )
    for name in _EQUAL:
        _require_equal(
            f"the shards were measured with different {name.replace('_', ' ')}",
            files,
            [(run.get(name), str(run.get(name))) for run in runs],
            f"collect all of them with the same options{', --batch-size too' if name == 'batch_size' else ''}",
        )
    given = [run.get(SHARD_DATA) for run in runs]
    data = [own if isinstance(own, Mapping) else {} for own in given]
    for role in sorted({str(role) for own in data for role in own}):
        _require_equal(
            f"the shards were measured on different {role} data",
            files,
            [(own.get(role), data_text(own.get(role))) for own in data],
            "collect all of them with the same data",
        )


def _require_equal(message: str, files: Sequence[Path], found: Sequence[tuple[object, str]], help: str) -> None:
    """Refuse files of which some differ from most; each has a value, and a text that tells of it."""
    values = [repr(value) for value, _ in found]
    usual = Counter(values).most_common(1)[0][0]
    lines = [f"{file}: {text}" for file, (_, text) in zip(files, found, strict=True)]
    odd = [line for line, value in zip(lines, values, strict=True) if value != usual]
    if odd:
        more = [f"and {len(odd) - MAX_NAMED} more"] if len(odd) > MAX_NAMED else []
        raise CaseError(message, where=[lines[values.index(usual)], *odd[:MAX_NAMED], *more], help=help)


def _require_all(places: Sequence[tuple[int, int]]) -> None:
    """Refuse fewer than all shards.

    Raises:
        CaseError: Names those that are missing.
    """
    count, known = places[0][1], {number for number, _ in places}
    missing = count - len(known)
    if missing:
        named = [f"{k}/{count}" for k in islice((k for k in range(1, count + 1) if k not in known), MAX_NAMED)]
        more = f" and {missing - MAX_NAMED} more" if missing > MAX_NAMED else ""
        raise CaseError(
            f"{missing} of {count} shards are missing",
            where=", ".join(named) + more,
            help=f"measure them with: quantmedic collect … --shard {named[0]}",
        )


def _require_slices(
    places: Sequence[tuple[int, int]], files: Sequence[Path], cases: Sequence[Case], merged: Case
) -> None:
    """Refuse shards that together lack samples.

    Raises:
        CaseError: Names the files that do not hold their part.
    """
    for role, found in merged.record.datasets.items():
        if found.complete:
            continue
        held = [sum(own.slices for own in case.sums.get(role, ())) for case in cases]
        parts = [slices_of_shard(place, found.slices) for place in places]
        lacking = [f for f, own, part in zip(files, held, parts, strict=True) if own != part.stop - part.start]
        raise CaseError(
            f"some of the {role} data were not measured",
            where=[str(file) for file in lacking[:MAX_NAMED]],
            help="collect these shards again, all with the same data and options",
        )


def with_notice(case: Case, *notices: str) -> Case:
    """The case with more that the user should know; a finished case that is opened again knows it already."""
    known = dict.fromkeys((*case.record.notices, *notices))
    return replace(case, record=case.record.model_copy(update={"notices": tuple(known)}))
