"""What can be checked of Windows without it: modules, names of files, and nothing that asks for links."""

import re
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

from quantmedic.collectors.data.functions import FUNCTION

ROOT = Path(__file__).parents[1]
#: Folders that are installed.
INSTALLED = ("collectors", "engine", "quantmedic", "reports", "trials")
#: Making one needs a right there that users do not have.
LINKING = re.compile(r"\.(symlink|symlink_to|hardlink_to)\(")


def test_nothing_that_is_installed_makes_links() -> None:
    sources = [path for room in INSTALLED for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 300
    assert not [path for path in sources if LINKING.search(path.read_text(encoding="utf-8"))]


def test_no_path_is_taken_for_a_function() -> None:
    """``module:function`` has a colon, as a drive has."""
    for path in ("C:\\data\\val.npz", "C:/data/val.npz", "\\\\server\\share\\val.npz", "D:\\val", "val.npz"):
        assert not FUNCTION.fullmatch(path) and not FUNCTION.fullmatch(str(PureWindowsPath(path))), path


@pytest.mark.nightly
def test_types_hold_where_there_is_no_unix(tmp_path: Path) -> None:
    """Whatever a module has on Unix alone is asked for there alone: mypy knows which names Windows lacks."""
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
