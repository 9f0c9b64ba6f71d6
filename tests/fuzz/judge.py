"""What a case came to: accepted, refused, a verdict, or a defect of quantmedic."""

import ast
import re
import signal
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

#: What nothing may write to a terminal or a log: escapes, C1, bidirectional controls, and commands of a CI.
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|^(::|##\[)", re.MULTILINE)
_INTERNAL = re.compile(r"^Traceback \(most recent|internal error:", re.MULTILINE)
#: What torch prints where a module of its own making fails, whoever called it.
_OF_TORCH = re.compile(r"^Traceback .*?^Call using an FX-traced Module", re.MULTILINE | re.DOTALL)
#: Errors of readers that could not even parse a file, and functions that refuse before anything is read.
_SYNTAX = re.compile(
    r"\b(DecodeError|JSONDecodeError|YAMLError|BadZipFile|TOMLDecodeError|UnicodeDecodeError|UsageError|FileNotFoundError"
    r"|UnidentifiedImageError|SafetensorError|UnpicklingError|EOFError|error)\b"
)
_FIRST_CHECKS = {
    "recognise_format",
    "first_text",
    "read_bytes",
    "read_text",
    "missing_path_error",
    "load_model",
    "convert",
}
#: Exit codes that are a judgement.
_VERDICTS = {"check": (1, 3, 4), "explain": (1,), "search": (1,), "fix": (1,)}
_HARNESS = 70
#: What Ctrl-C ends with; here only code of a case can have raised it.
_INTERRUPTED = 130


@dataclass(frozen=True)
class Ended:
    """A case that ended; ``over`` tells a limit that it passed."""

    case: Path
    aside: Path
    code: int
    over: str

    def text(self, name: str) -> str:
        try:
            return (self.aside / name).read_bytes().decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            return ""

    @cached_property
    def note(self) -> list[str]:
        """Words of the command; errors by type; functions that they went through; the place that raised."""
        return [*self.text("note").split("\n"), "", "", "", ""]

    @property
    def command(self) -> str:
        return self.note[0]


def describe(error: BaseException) -> str:
    """Three lines of a note: an error and its causes by type, the functions that it went through, its place."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < 9:
        chain.append(cause)
    kinds = [kind.__name__ for each in chain for kind in type(each).__mro__]
    functions = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    places = [f"{type(each).__name__} in {_place(each)}" for each in (chain[0], *chain[1:][-1:])]
    return f"{' '.join(kinds)}\n{' '.join(functions)}\n{' from '.join(places)}\n"


def _place(error: BaseException) -> str:
    """The deepest function of quantmedic that an error went through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/quantmedic/" in frame.filename]
    own = [
        frame
        for frame in frames
        if "site-packages/" not in frame.filename or "site-packages/quantmedic" in frame.filename
    ]
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "?"


def judge(ended: Ended) -> tuple[str, bool, str]:
    """Kind, whether the case came past the first check, and the defect or the place that refused."""
    _, kinds, functions, place, *_ = ended.note
    if defect := _defect(ended, place):
        return "defect", True, defect
    words = ast.literal_eval(ended.command)
    if ended.code in _VERDICTS.get(words[0] if words else "", ()):
        return "verdict", True, place
    if ended.code == 0:
        return "ok", True, ""
    if ended.code == _INTERRUPTED and any("mine:" in word for word in words):
        return "refused", True, place
    if ended.code != 2:
        return "defect", True, f"exit code {ended.code}: {place}"
    shallow = _SYNTAX.search(kinds) or _FIRST_CHECKS & set(functions.split()[-4:])
    return "refused", not shallow, place


def _defect(ended: Ended, place: str) -> str:
    said = _OF_TORCH.sub("", ended.text("out") + ended.text("err"))
    if ended.over or ended.code == -signal.SIGXCPU:
        return ended.over or "hang"
    if ended.code < 0:
        return f"signal {-ended.code}"
    if ended.code == _HARNESS:
        return "the harness itself: " + ended.text("note").strip().rpartition("\n")[2]
    if _INTERNAL.search(said):
        return f"internal error: {place}"
    if raw := _RAW.search(said):
        return f"raw {raw[0]!r} on the terminal"
    if touched := ended.text("touched"):
        return f"outside: {touched.splitlines()[0][:100]}"
    if stray := _stray(ended):
        return f"file outside: {stray}"
    return ""


def _stray(ended: Ended) -> str:
    """What lies where nothing was asked for: beside the input, in the home or the temporary folder.

    A case that is kept there since the output cannot be written is told.
    """
    left = [path for name in ("home", "tmp") for path in (ended.aside / name).rglob("*") if path.is_file()]
    left = [path for path in left if f"is kept in the case {path}:" not in ended.text("err")]
    if before := ended.text("inputs"):
        left += [Path(line) for line in sorted(set(list_files(ended.case)) ^ set(before.split("\n")))]
    return re.sub(r"[\w-]{8,}", "…", str(left[0])) if left else ""


def list_files(folder: Path = Path()) -> list[str]:
    """Files but those of ``out``, with their sizes; a link to one of ``out`` is none."""
    found = [(path, path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(f"{str(name)!r} {path.stat().st_size}" for path, name in found if name.parts[0] != "out")
