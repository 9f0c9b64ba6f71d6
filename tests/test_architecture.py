"""The house: which folder may import which, and what installs."""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from quantmedic.collectors.front_ends import FRONT_ENDS
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS
from quantmedic.collectors.measure.device_tensors import DEVICE_TENSORS
from quantmedic.collectors.toolchain_files.formats import FORMATS
from quantmedic.trials.edit import REMEDIES

pytestmark = pytest.mark.thorough

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
        "toolchain_files": {"data", "native", "toolchain_files"},
        "measure": _MEASURING,
        "from_onnx": _MEASURING | {"from_onnx"},
        "from_translation": _MEASURING | {"from_translation", "from_onnx"},
        "from_litert": _MEASURING | {"from_litert", "from_translation", "from_onnx"},
        "from_openvino": _MEASURING | {"from_openvino", "from_translation", "from_onnx"},
        "from_torch": _MEASURING | {"from_torch"},
        "from_checkpoint": _MEASURING | {"from_checkpoint"},
        "from_language_model": {"data", "native", "measure", "from_checkpoint", "from_torch", "from_language_model"},
        "from_settings": {"data", "native", "toolchain_files", "from_settings"},
        "from_device": _MEASURING | {"from_device"},
    },
}
#: How a report is made, from left to right: rooms and modules of ``reports`` import what stands before them, and those
#: of one step nothing of each other.
REPORT_STEPS = (
    ("text",),
    ("charts",),
    ("kept", "blocks"),
    ("block_markdown",),
    ("templating", "sections", "manual"),
    ("context",),
    ("machines", "page", "terminal"),
    ("comparison_formats", "search_formats", "write", "xquant"),
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
    "cloup",
    "numba",
    "tensorflow",
    "ai_edge_litert",
    "openvino",
}
CLOCKS = {"time", "datetime"}
#: Packages, and the only places that import them.
AT_HOME = [
    # What no module here imports cannot miss it: ``.ci/run`` leaves the engine and the reports out without torch.
    (
        ("torch", "torchao"),
        ("collectors/from_torch/", "collectors/from_language_model/", "trials/from_torch/", "quantmedic/xquant"),
    ),
    # Each is imported offline (``engine/offline.py``).
    (("openvino", "nncf"), ("collectors/from_openvino/",)),
    (("transformers", "huggingface_hub"), ("collectors/from_language_model/skeleton.py",)),
    (("tokenizers",), ("collectors/from_language_model/tokenizer.py",)),
    # Graphs hold plain values, so that whoever measures or reports needs no package of one framework.
    (
        ("onnx",),
        (
            *("collectors/from_onnx/", "collectors/from_translation/", "collectors/from_litert/"),
            *("collectors/from_openvino/", "trials/from_onnx/"),
        ),
    ),
]


@cache
def modules(folder: str) -> list[Path]:
    """Python files of a folder of the house, without the links that point to its neighbours."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT)
        if not any((ROOT / parent).is_symlink() for parent in inside.parents):
            found.append(inside)
    return found


class Imports(NamedTuple):
    """Dotted names that a file imports, and the statements that do so inside its functions."""

    names: tuple[str, ...]
    local: tuple[ast.stmt, ...]


@cache
def imports(path: Path) -> Imports:
    nodes = list(ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    inner = {id(node): node for function in functions for node in ast.walk(function)}
    local = tuple(node for node in inner.values() if isinstance(node, ast.Import | ast.ImportFrom))
    return Imports(tuple(_names(path, nodes)), local)


def imported(path: Path) -> tuple[str, ...]:
    return imports(path).names


def _names(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Relative names are resolved as installed; literal dynamic ones count."""
    package = ["quantmedic", *(part for part in path.parent.parts if part != "quantmedic")]
    for node in nodes:
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


def wrong_imports(folders: Iterable[str], is_wrong: Callable[[Path, str], bool]) -> set[str]:
    """Imports of modules in some folders that a rule forbids."""
    paths = [path for folder in folders for path in modules(folder)]
    return {f"{path}: {name}" for path in paths for name in imported(path) if is_wrong(path, name)}


def test_the_house_is_found() -> None:
    for folder in FOLDERS - {"trials"}:
        assert modules(folder), f"{folder} holds no Python"
    assert folder_of("quantmedic.engine.case.records") == "engine"
    assert folder_of("quantmedic.cli.main") == "quantmedic"
    assert folder_of("engine.case") is None
    assert "quantmedic.engine.case.facts.Role" in list(imported(Path("engine/case/records.py")))


def test_imports_go_one_way() -> None:
    assert not wrong_imports(MAY_IMPORT, lambda path, name: folder_of(name) not in {None, *MAY_IMPORT[path.parts[0]]})


def test_rooms_import_one_way() -> None:
    """Every room has a direction. Imports inside functions and for type checkers count: a cycle is a cycle."""
    wrong = set()
    for folder, rooms in ROOMS.items():
        inside = [path for path in modules(folder) if len(path.parts) > 2]
        assert {path.parts[1] for path in inside} == set(rooms)
        for path in inside:
            for name in imported(path):
                parts = name.split(".")
                other = parts[2] if parts[:2] == ["quantmedic", folder] and len(parts) > 2 else None
                if other in rooms and other not in rooms[path.parts[1]]:
                    wrong.add(f"{path}: {name}")
    assert not wrong


#: Modules of extensions: all that is made for one framework, file or toolchain, but ONNX.
EXTENSION = re.compile(r"(collectors|trials)\.from_(?!onnx\b)\w+")
#: The page of the manual that says which modules of the core extensions may import.
CONTRACT = ROOT / "manuals" / "general" / "extensions.md"


def test_the_core_imports_no_extension() -> None:
    """Nor does it name a module of one in a string: entry points alone lead to them."""
    core = [path for folder in sorted(FOLDERS) for path in modules(folder) if not EXTENSION.search(dotted(path))]
    named = {f"{path}: {name}" for path in core for name in (*imported(path), *module_names(path))}
    assert not {each for each in named if EXTENSION.search(each.partition(": ")[2])}
    lines = dict.fromkeys(("core", "extensions"), 0)
    for path in (path for folder in FOLDERS for path in modules(folder)):
        lines["core" if path in core else "extensions"] += len((ROOT / path).read_text(encoding="utf-8").splitlines())
    print(*(f"{count} lines of {what}" for what, count in lines.items()), sep="\n")  # shown by: pytest -rP


def module_names(path: Path) -> Iterator[str]:
    """Texts in a file that may be names of modules."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.:]+", node.value):
            yield node.value


def test_extensions_import_what_the_manual_says() -> None:
    """Ours import what is promised and what it lists besides, the examples for others what is promised alone."""
    promised, besides = contract()
    ours = [path for folder in ("collectors", "trials") for path in modules(folder) if EXTENSION.search(dotted(path))]
    used = {name for path in ours for name in core_modules(path)}
    assert used - promised == besides
    others = [Path("examples/extension/quantmedic_acme.py"), Path("tests/support/builders/toy_front_end.py")]
    assert {name for path in others for name in core_modules(path)} <= promised
    table = CONTRACT.read_text(encoding="utf-8").partition("## What an extension may import")[2]
    for module, names in re.findall(r"^\| `([\w.]+)` \| (.*?) \|", table.partition("## What ours")[0], re.M):
        found = import_module(module)
        assert all(hasattr(found, name) for name in re.findall(r"`(\w+)`", names)), module


def contract() -> tuple[set[str], set[str]]:
    """Modules that are promised to extensions, and those that ours import besides."""
    first, second = CONTRACT.read_text(encoding="utf-8").split("## What ours import besides")
    promised = set(re.findall(r"^\| `(quantmedic\.[\w.]+)` \|", first.partition("## What an extension")[2], re.M))
    rows = re.findall(r"^\| `(quantmedic\.[\w.]+)` \| (.*) \|$", second, re.M)
    return promised, {f"{package}.{name}" for package, names in rows for name in re.findall(r"`(\w+)`", names)}


def core_modules(path: Path) -> set[str]:
    """Modules of the core that a file imports."""
    names = {dotted(found) for folder in FOLDERS for found in modules(folder)}
    found = {longest_known(name, names) for name in imported(path) if name.startswith("quantmedic.")}
    return {name for name in found if name is not None and not EXTENSION.search(name)}


def test_our_entry_points_lead_to_what_they_name() -> None:
    pytest.importorskip("torch", reason="torch is not installed, which its editor imports")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    kinds = (FRONT_ENDS, REMEDIES, FORMATS, CHECKPOINTS, DEVICE_TENSORS)
    assert {group for group in groups if group.startswith("quantmedic.")} == {kind.group for kind in kinds}
    assert set(groups["quantmedic.remedies"]) == set(groups["quantmedic.front_ends"])
    assert not [error for kind in kinds for error in kind.errors()]


#: Names of what writes, moves or removes files, whatever it is called on.
WRITING = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "unlink", "remove", "removedirs", "rmdir", "rename"),
    *("renames", "symlink", "symlink_to", "hardlink_to", "link", "chmod", "truncate", "mkfifo", "mknod", "fdopen"),
    *("copy", "copy2", "copyfile", "copytree", "move", "rmtree", "make_archive", "unpack_archive", "extractall"),
    *("TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp", "FileHandler", "RotatingFileHandler"),
    *("save", "savez", "savez_compressed", "savetxt", "save_model", "save_file", "tofile"),
    *("SummaryWriter", "EventFileWriter", "connect"),
}
#: Names of what writes where it is told to.
OPENING = {"open", "memmap", "open_memmap", "ZipFile"}
#: Modules on which a name that others have, too, means files.
ON = {
    **{key: {"os"} for key in ("remove", "link", "truncate", "rename", "symlink")},
    **{key: {"shutil"} for key in ("copy", "move")},
    **{key: {"np", "numpy", "onnx", "torch", "openvino", "ov"} for key in ("save", "save_model")},
    "connect": {"sqlite3"},
}
#: What else writes, and why it does not go by ``engine/output_files.py``.
OTHER_WRITERS = {
    ("engine/cache_folder.py", "mkdir"): "the cache, which is checked for links and rights before it is used",
    ("engine/cache_folder.py", "chmod"): "likewise",
    ("collectors/data/archives.py", "ZipFile"): "in a file that is open already",
    ("collectors/data/arrays.py", "savez"): "likewise",
    ("collectors/case_file/archive.py", "save"): "in memory",
    ("collectors/from_language_model/unfinished.py", "memmap"): "a file that is open already",
    ("quantmedic/api/judging.py", "mkdtemp"): "a folder that stays, for the browser to show",
    ("quantmedic/mcp/work.py", "fdopen"): "standard output, which is open already",
    ("quantmedic/xquant_tensorboard.py", "EventFileWriter"): "in a scratch folder, whose files are copied",
}


def test_files_are_written_in_one_place() -> None:
    """All that writes, moves or removes files goes by the functions of one module, which follow no links."""
    home = Path("engine/output_files.py")
    found = {
        (path.as_posix(), name)
        for folder in ("quantmedic", "engine", "collectors", "reports", "trials")
        for path in modules(folder)
        if path != home
        for name in calls_that_write(path)
    }
    assert found - OTHER_WRITERS.keys() == set(), "write by a function of engine/output_files.py"
    assert OTHER_WRITERS.keys() - found == set()


def calls_that_write(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name not in {*WRITING, *OPENING, "replace"}:
                continue
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            given = [ast.unparse(each) for each in (*node.args, *(keyword.value for keyword in node.keywords))]
            if (
                (name in WRITING and owner in ON.get(name, {owner}))
                or (name in OPENING and owner != "archive" and opens_to_write(given))
                or (name == "replace" and (owner == "os" or (owner and len(node.args) == len(given) == 1)))
            ):
                yield name


def opens_to_write(given: Collection[str]) -> bool:
    """By the mode or the flags that one of the arguments is."""
    writing = re.compile(r"'[rbt]*[wax+][rwaxbt+]*'|.*\bO_(WRONLY|RDWR|CREAT)\b.*")
    return "os.devnull" not in given and any(map(writing.fullmatch, given))


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


def test_imports_inside_functions_say_why() -> None:
    """The reason, start-up time or an optional package, stands on the line or above the group that it belongs to."""
    wrong = []
    for path in [path for folder in sorted(FOLDERS) for path in modules(folder)]:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for node in imports(path).local:
            above = node.lineno - 2
            while re.match(r"\s+(from|import) ", lines[above]) and "#" not in lines[above]:
                above -= 1
            said = any("#" in line for line in (*lines[node.lineno - 1 : node.end_lineno], lines[above]))
            wrong += [] if said else [f"{path}:{node.lineno}"]
    assert not wrong


def test_engine_knows_no_framework_and_no_clock() -> None:
    """A day is data; which one it is, the caller says."""
    forbidden = FRAMEWORKS | CLOCKS
    assert not wrong_imports(["engine"], lambda _, name: name.split(".")[0] in forbidden and name != "datetime.date")
    assert not {path for path in modules("engine") if "date.today" in path.read_text(encoding="utf-8")}


def test_data_folders_import_nothing() -> None:
    assert not wrong_imports(["rules", "manuals"], lambda *_: True)


@pytest.mark.parametrize("packages, at_home", AT_HOME, ids=lambda names: names[0])
def test_frameworks_stay_at_home(packages: tuple[str, ...], at_home: tuple[str, ...]) -> None:
    def is_wrong(path: Path, name: str) -> bool:
        return name.split(".")[0] in packages and not path.as_posix().startswith(at_home)

    assert not wrong_imports(FOLDERS, is_wrong)


def test_no_bare_imports_of_the_house() -> None:
    """An installed ``engine`` would clash with a user's own."""
    names = "|".join(MAY_IMPORT)
    bare = re.compile(rf"^\s*(?:from|import) (?:{names})\b|(?:import_module|__import__)\([\"'](?:{names})\b", re.M)
    paths = [ROOT / path for folder in FOLDERS | WORKSHOP for path in modules(folder)]
    assert not [path for path in paths if bare.search(path.read_text(encoding="utf-8"))]


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
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not {path.partition("/")[0] for path in tracked.splitlines()} - FOLDERS - WORKSHOP
