"""The tiers of the tests.

``pytest`` alone is the inner loop. It leaves out what is marked ``thorough``: what takes 0.3 seconds or more, or
needs torch, a browser or real networks; ``pytest -m "not nightly"`` runs that too, and is what a commit has to pass. A
test file named on the command line runs as a whole, but for nightly tests. ``nightly`` marks what needs another
toolchain, tries many more cases, or is dear beside one that runs each time; ``.ci/nightly`` runs it. The marker
expression (``addopts`` in ``pyproject.toml``) decides; it also chooses the profile of the property tests.
"""

import compileall
import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before numpy is loaded, and for the commands that tests run: matrices are small here, and threads of several test
# processes that wait for one another multiply the time.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Each process, and each that it starts, would rewrite assertions and compile what it imports anew, which takes longer
# than to import it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests that are not about the integer kernels of one processor give the same on every host.
os.environ["QUANTMEDIC_EXACT_KERNELS"] = "1"

# Tests that are not about proof do not wait for it.
os.environ["QUANTMEDIC_NO_PROVE"] = "1"

import quantmedic  # noqa: E402
from quantmedic.demo import patient  # noqa: E402

INNER_LOOP = "not thorough and not nightly"
#: How many modules there were when the collector was last told to keep all.
MODULES_THEN = [0]

pytest.register_assert_rewrite("builders")

# How long an example takes depends on what else the machine does: no test judges by that.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("nightly", deadline=None, derandomize=True, max_examples=200)


def pytest_configure(config: pytest.Config) -> None:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if is_inner_loop(config) and named and all(name.partition("::")[0].endswith(".py") for name in config.args):
        config.option.markexpr = "not nightly"
    at_night = re.search(r"(?<!not )\bnightly", str(config.option.markexpr))
    settings.load_profile("quick" if is_inner_loop(config) else "nightly" if at_night else "thorough")
    if not hasattr(config, "workerinput"):
        compile_package()


def compile_package() -> None:
    """Compile the package once. Where Python was told to keep nothing, each of many processes would compile it anew."""
    package = Path(quantmedic.__file__).parent
    for folder in (package, *(path for path in package.iterdir() if path.is_symlink())):
        compileall.compile_dir(folder, quiet=2)


def pytest_report_header(config: pytest.Config) -> str | None:
    return 'inner loop; all that a commit has to pass: pytest -m "not nightly"' if is_inner_loop(config) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is left out as a whole is not imported in the inner loop: torch alone takes seconds."""
    return True if is_inner_loop(config) and is_left_out(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nearly all that comes into being stays: walking through it again and again took half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    keep_for_good()


def pytest_runtest_teardown() -> None:
    """Torch alone brings half a million objects, which the collector would walk through after each measurement."""
    if len(sys.modules) > MODULES_THEN[0] + 200:
        keep_for_good()


def keep_for_good() -> None:
    """What was collected and imported lives until the end: the garbage collector need not look at it ever again."""
    gc.collect()
    gc.freeze()
    MODULES_THEN[0] = len(sys.modules)


def is_inner_loop(config: pytest.Config) -> bool:
    return str(config.option.markexpr) == INNER_LOOP


def is_left_out(path: Path) -> bool:
    """Whether a marker of another tier stands for the whole file."""
    marker = r"^pytestmark = \[?\s*pytest\.mark\.(thorough|nightly)"
    return path.suffix == ".py" and re.search(marker, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.fixture(scope="session")
def patient_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Case file of the embedded patient; no test writes to it."""
    return write_demo_case(tmp_path_factory.mktemp("patient") / "demo.case", healthy=False)


@pytest.fixture(scope="session")
def healthy_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Case file of the patient's healthy twin; no test writes to it."""
    return write_demo_case(tmp_path_factory.mktemp("healthy") / "demo.case", healthy=True)


def write_demo_case(path: Path, *, healthy: bool) -> Path:
    models, options = patient(healthy=healthy)
    quantmedic.save_case(quantmedic.collect(*models, **options), path)
    return path


@pytest.fixture(scope="session", autouse=True)
def _inner_loop_without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if is_inner_loop(request.config):
        assert "torch" not in sys.modules, "a test of the inner loop imported torch: mark it thorough"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, one for all tests of a process: it takes no second driver. Without it they are skipped."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
