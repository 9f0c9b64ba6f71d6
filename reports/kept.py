"""What every report is made with, kept between runs: templates as compiled code, and the manual as pages."""

import hashlib
import json
import marshal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from quantmedic.engine.cache_folder import cache_folder
from quantmedic.engine.output_files import write_file

#: What the manual's pages are made by, beside this package.
_LIBRARIES = ("markdown", "jinja2", "markupsafe")


class KeptTemplates(jinja2.BytecodeCache):
    """Compiled templates; compiling those of a report takes as long as rendering it."""

    def __init__(self) -> None:
        """Keep them where only the user writes, for they are executed; nowhere, where there is no such folder."""
        self._folder = cache_folder("templates")

    def load_bytecode(self, bucket: Bucket) -> None:
        """The code, if it was compiled from this very text by these versions."""
        if self._folder is None:
            return
        head = self._head(bucket)
        with suppress(OSError, ValueError, EOFError, TypeError):
            stored = self._path(self._folder, bucket).read_bytes()
            if stored.startswith(head):
                bucket.code = marshal.loads(stored[len(head) :])  # noqa: S302  # from the user's own folder

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code, if there is room."""
        if self._folder is not None and bucket.code is not None:
            with suppress(OSError):
                write_file(self._path(self._folder, bucket), self._head(bucket) + marshal.dumps(bucket.code))

    def _path(self, folder: Path, bucket: Bucket) -> Path:
        return folder / bucket.key

    def _head(self, bucket: Bucket) -> bytes:
        return f"{bucket.checksum} {sys.version} jinja2 {jinja2.__version__}\n".encode()


def kept_pages(manuals: Mapping[str, str], render: Callable[[str, str], str]) -> Mapping[str, str]:
    """The pages of a manual as HTML by the path of each; one that was not rendered before from the same text is now.

    Kept are the pages of the last manual.

    Args:
        manuals: The pages in Markdown.
        render: Renders one, of its path and its text.
    """
    folder = cache_folder("manual")
    if folder is None:
        return {code: render(code, text) for code, text in manuals.items()}
    kept = folder / "pages.json"
    stored = _stored_pages(kept)
    digests = {code: hashlib.sha256(f"{code}\n{text}".encode()).hexdigest() for code, text in manuals.items()}
    pages = {digest: stored.get(digest) or render(code, manuals[code]) for code, digest in digests.items()}
    if not pages.keys() <= stored.keys():
        with suppress(OSError):
            write_file(kept, json.dumps({"made_by": _renderer(), "pages": pages}).encode())
    return {code: pages[digest] for code, digest in digests.items()}


def _stored_pages(kept: Path) -> dict[str, str]:
    """Pages by the digest of each; none where another renderer made them, or they cannot be read."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(kept.read_bytes())
        if stored["made_by"] == _renderer():
            return dict(stored["pages"])
    return {}


@cache
def _renderer() -> list[str]:
    """What tells another renderer: versions of libraries, and the code and templates of this package."""
    digest = hashlib.sha256()
    for text in _code_of_reports():
        digest.update(text)
    return [*(f"{name} {version(name)}" for name in _LIBRARIES), digest.hexdigest()]


def _code_of_reports() -> Iterable[bytes]:
    for folder in ("", "charts", "page", "templates"):
        place = files("quantmedic.reports") / folder
        for path in sorted(place.iterdir(), key=lambda each: each.name):
            if path.is_file():
                yield path.name.encode() + path.read_bytes()
