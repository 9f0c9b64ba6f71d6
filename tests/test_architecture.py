"""The house: which folder may import which, what installs, and what a cheap start may load."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What each folder may import from the project; the face, ``quantmedic/``, may import everything.
MAY_IMPORT = {
    "engine": {"engine"},
    "collectors": {"collectors", "engine"},
    "reports": {"reports", "engine"},
    "trials": {"trials", "engine", "collectors"},
    "rules": set(),
    "manuals": set(),
}
#: What every front end may import: none imports another, but LiteRT and OpenVINO run translations on that of ONNX, and
#: language models are moved as torch modules are.
_MEASURING = {"data", "native", "metrics", "pair", "statistics", "measure"}
#: What a diagnosis starts from.
_FACTS = {"case", "metrics", "formulas"}
#: Rooms of a folder, and what each may import of the others; the modules beside them are free for all.
ROOMS = {
    "engine": {
        "case": {"case"},
        "metrics": {"case", "metrics"},
        "formulas": _FACTS,
        "rules": _FACTS | {"rules"},
        "contract": _FACTS | {"rules", "contract"},
        "diagnosis": _FACTS | {"rules", "contract", "diagnosis"},
        "gate": _FACTS | {"rules", "contract", "diagnosis", "gate"},
        "versus": _FACTS | {"rules", "contract", "diagnosis", "versus"},
    },
    "collectors": {
        "data": {"data"},
        "native": {"native"},
        "metrics": {"data", "metrics"},
        "pair": {"data", "pair"},
        "statistics": {"data", "metrics", "pair", "statistics"},
        "case_file": {"data", "case_file"},
        "measure": _MEASURING,
        "from_onnx": _MEASURING | {"from_onnx"},
        "from_litert": _MEASURING | {"from_litert", "from_onnx"},
        "from_openvino": _MEASURING | {"from_openvino", "from_onnx"},
        "from_torch": _MEASURING | {"from_torch"},
        "from_checkpoint": _MEASURING | {"from_checkpoint"},
        "from_language_model": {"data", "from_checkpoint", "from_torch", "from_language_model"},
        "from_settings": {"data", "native", "from_settings"},
        "from_device": _MEASURING | {"from_device"},
    },
}
#: How a report is made, from left to right: rooms and modules of ``reports`` import what stands before them, and those
#: of one step nothing of each other.
REPORT_STEPS = (
    ("text",),
    ("charts",),
    ("kept",),
    ("templating", "sections", "manual"),
    ("context",),
    ("machines", "markdown", "page", "terminal"),
    ("files", "write", "xquant"),
)
FOLDERS = {"quantmedic", *MAY_IMPORT}
#: Folders with Python that is not installed.
WORKSHOP = {"tests", "benchmarks", "docs", "examples"}
FRAMEWORKS = {
    "torch",
    "onnx",
    "onnxruntime",
    "jinja2",
    "rich",
    "click",
    "numba",
    "tensorflow",
    "ai_edge_litert",
    "openvino",
}
CLOCKS = {"time", "datetime"}
SLOW = {"numba", "onnx", "onnxruntime", "pydantic", "rich", "jinja2", "scipy"}


@cache
def modules(folder: str) -> list[Path]:
    """Python files of a folder of the house, without the links that point to its neighbours."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT)
        if not any((ROOT / parent).is_symlink() for parent in inside.parents):
            found.append(inside)
    return found


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports, relative ones resolved as installed, and literal dynamic ones."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = ["quantmedic", *(part for part in path.parent.parts if part != "quantmedic")]
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value)


def folder_of(name: str) -> str | None:
    """Folder of the house that an imported name belongs to; None for a name from outside."""
    parts = name.split(".")
    if parts[0] != "quantmedic":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "quantmedic"


every_module = pytest.mark.parametrize(
    "path", [p for folder in sorted(FOLDERS | WORKSHOP) for p in modules(folder)], ids=lambda path: path.as_posix()
)


def test_the_house_is_found() -> None:
    for folder in FOLDERS - {"trials"}:
        assert modules(folder), f"{folder} holds no Python"
    assert folder_of("quantmedic.engine.case.records") == "engine"
    assert folder_of("quantmedic.cli.main") == "quantmedic"
    assert folder_of("engine.case") is None
    assert "quantmedic.engine.case.facts.Role" in list(imported(Path("engine/case/records.py")))


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_one_way(folder: str) -> None:
    wrong = {
        f"{path}: {name}"
        for path in modules(folder)
        for name in imported(path)
        if folder_of(name) not in {None, *MAY_IMPORT[folder]}
    }
    assert not wrong


@pytest.mark.parametrize("folder", ROOMS)
def test_every_room_has_a_direction(folder: str) -> None:
    assert {path.parts[1] for path in modules(folder) if len(path.parts) > 2} == set(ROOMS[folder])


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms_import_one_way(folder: str) -> None:
    """Imports inside functions and for type checkers count: a cycle is a cycle."""
    wrong, rooms = set(), ROOMS[folder]
    for path in modules(folder):
        if len(path.parts) <= 2:
            continue
        for name in imported(path):
            parts = name.split(".")
            other = parts[2] if parts[:2] == ["quantmedic", folder] and len(parts) > 2 else None
            if other in rooms and other not in rooms[path.parts[1]]:
                wrong.add(f"{path}: {name}")
    assert not wrong


def test_reports_are_made_in_one_direction() -> None:
    step_of = {part: step for step, parts in enumerate(REPORT_STEPS) for part in parts}
    inside = [path for path in modules("reports") if path.name != "__init__.py"]
    assert {Path(path.parts[1]).stem for path in inside} == set(step_of)
    wrong = set()
    for path in inside:
        own = Path(path.parts[1]).stem
        for name in imported(path):
            parts = name.split(".")
            other = parts[2] if parts[:2] == ["quantmedic", "reports"] and len(parts) > 2 else own
            if other != own and step_of[other] >= step_of[own]:
                wrong.add(f"{path}: {name}")
    assert not wrong


def test_no_modules_import_each_other() -> None:
    """Not even inside functions or for type checkers."""
    names = {dotted(path): path for folder in FOLDERS for path in modules(folder)}
    graph = {
        name: {target for found in imported(path) if (target := longest_known(found, names)) not in (None, name)}
        for name, path in names.items()
    }
    TopologicalSorter(graph).prepare()  # names the cycle where there is one


def dotted(path: Path) -> str:
    """Name of a module of the house as it is installed; that of the package for its ``__init__``."""
    parts = path.with_suffix("").parts
    return ".".join(parts if parts[0] == "quantmedic" else ("quantmedic", *parts)).removesuffix(".__init__")


def longest_known(name: str, names: Collection[str]) -> str | None:
    """The module that an imported name is, or is defined in."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name or None


def local_imports(path: Path) -> Iterator[ast.stmt]:
    """Imports inside the functions of a file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Import | ast.ImportFrom))


def test_imports_inside_functions_say_why() -> None:
    """The reason, start-up time or an optional package, stands on the line or above the group that it belongs to."""
    wrong = []
    for path in [path for folder in sorted(FOLDERS) for path in modules(folder)]:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for node in local_imports(path):
            above = node.lineno - 2
            while re.match(r"\s+(from|import) ", lines[above]) and "#" not in lines[above]:
                above -= 1
            said = any("#" in line for line in (*lines[node.lineno - 1 : node.end_lineno], lines[above]))
            wrong += [] if said else [f"{path}:{node.lineno}"]
    assert not wrong


@pytest.mark.parametrize("folder", ["rules", "manuals"])
def test_data_folders_import_nothing(folder: str) -> None:
    assert not {f"{path}: {name}" for path in modules(folder) for name in imported(path)}


def test_engine_knows_no_framework_and_no_clock() -> None:
    forbidden = FRAMEWORKS | CLOCKS
    wrong = {
        f"{path}: {name}"
        for path in modules("engine")
        for name in imported(path)
        if name.split(".")[0] in forbidden
        and name != "datetime.date"  # a day is data; which one it is, the caller says
    }
    assert not wrong
    assert not {path for path in modules("engine") if "date.today" in path.read_text(encoding="utf-8")}


def test_torch_stays_where_modules_are_read_and_edited() -> None:
    """What no module here imports cannot miss it: ``.ci/run`` leaves the engine and the reports out without torch."""
    at_home = ("collectors/from_torch/", "collectors/from_language_model/", "trials/from_torch/", "quantmedic/xquant")
    wrong = {
        f"{path}: {name}"
        for folder in FOLDERS
        for path in modules(folder)
        for name in imported(path)
        if name.split(".")[0] in ("torch", "torchao") and not path.as_posix().startswith(at_home)
    }
    assert not wrong


def test_protobuf_stays_where_onnx_files_are_read_and_edited() -> None:
    """Graphs hold plain values, so that whoever measures or reports needs no package of one framework."""
    at_home = (
        *("collectors/from_onnx/", "collectors/from_litert/", "collectors/from_openvino/", "trials/from_onnx/"),
        "collectors/from_device/node_dumps.py",  # reads tensors that onnxruntime serialized
    )
    wrong = {
        f"{path}: {name}"
        for folder in FOLDERS
        for path in modules(folder)
        for name in imported(path)
        if name.split(".")[0] == "onnx" and not path.as_posix().startswith(at_home)
    }
    assert not wrong


@every_module
def test_no_bare_imports_of_the_house(path: Path) -> None:
    """An installed ``engine`` would clash with a user's own."""
    assert not {name for name in imported(path) if name.split(".")[0] in MAY_IMPORT}


def test_packages_are_the_folders_with_modules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    expected = {}
    for folder in FOLDERS:
        for parent in {path.parent for path in modules(folder)}:
            inside = parent.parts if folder == "quantmedic" else ("quantmedic", *parent.parts)
            expected[".".join(inside)] = parent.as_posix()
    assert len(settings["packages"]) == len(set(settings["packages"]))
    assert set(settings["packages"]) == set(expected)
    assert settings["package-dir"] == expected
    for folder in expected.values():
        assert (ROOT / folder / "__init__.py").is_file(), f"{folder} is no package"


def test_no_other_folder_holds_python() -> None:
    """Among the files that git tracks: what a run leaves behind, such as a report's ``prescription.py``, is no part."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "*/*.py"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert not {path.partition("/")[0] for path in tracked.splitlines()} - FOLDERS - WORKSHOP


@pytest.mark.parametrize(
    "arguments", [["-c", "import quantmedic"], ["-m", "quantmedic", "--help"]], ids=["import", "help"]
)
def test_cheap_start_loads_nothing_slow(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(re.findall(r"\|\s*([\w.]+)$", done.stderr, re.M))
    assert "quantmedic" in loaded
    assert not {name for name in loaded if name.split(".")[0] in SLOW}


def test_rules_are_listed_without_scipy(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "quantmedic", "rules"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert not re.search(r"\|\s*scipy", done.stderr)
