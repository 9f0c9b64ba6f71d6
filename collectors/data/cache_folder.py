"""Where results that are worth keeping between runs lie."""

import os
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of the user's cache that can be written; one for this process alone where there is none.

    Never beside the source: files that pip does not know would survive an uninstall and hide the next install.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
    folder = Path(root) / "quantmedic" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.gettempdir()) / f"quantmedic-{name}-{os.getpid()}"
