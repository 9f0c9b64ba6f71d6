"""What can be checked of Windows without it: modules, names of files, and nothing that asks for links."""

import ast
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

from quantmedic.collectors.data.functions import FUNCTION

ROOT = Path(__file__).parents[1]
#: Folders that are installed.
INSTALLED = ("collectors", "engine", "quantmedic", "reports", "trials")
#: Making one needs a right there that users do not have.
LINKING = {"symlink", "symlink_to", "hardlink_to"}


def calls(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {function.attr for function in functions if isinstance(function, ast.Attribute)}


@pytest.mark.thorough
def test_nothing_that_is_installed_makes_links() -> None:
    sources = [path for room in INSTALLED for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 300
    assert not [path for path in sources if calls(path) & LINKING]


@pytest.mark.parametrize(
    "path", ["C:\\data\\val.npz", "C:/data/val.npz", "\\\\server\\share\\val.npz", "D:\\val", "val.npz"]
)
def test_no_path_is_taken_for_a_function(path: str) -> None:
    """``module:function`` has a colon, as a drive has."""
    assert not FUNCTION.fullmatch(path) and not FUNCTION.fullmatch(str(PureWindowsPath(path)))


@pytest.mark.thorough
def test_types_hold_where_there_is_no_unix(tmp_path: Path) -> None:
    """Whatever a module has on Unix alone is asked for there alone: mypy knows which names Windows lacks."""
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
