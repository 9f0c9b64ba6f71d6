"""Results never depend on time: clocks that stand still or leap give the same case and the same report, to the bit.

The limits that end a run, ``timeout`` and seconds for ``prove``, are what a user may set a clock for.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quantmedic
from quantmedic.demo import patient

pytestmark = pytest.mark.thorough

#: Seconds that each look at a clock takes: a machine that is too fast to be true, and one that is too slow.
STEPS = {"fast": 1e-9, "slow": 1e3}


def lie(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """All clocks of the machine go on by a step whenever they are read, and never between."""

    def clock() -> Callable[[], float]:
        moments: Iterator[float] = itertools.count(1e9, step)
        return lambda: next(moments)

    for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time"):
        monkeypatch.setattr(time, name, clock())


def written(folder: Path) -> dict[str, str]:
    """Hashes of all that a run leaves behind which tries everything."""
    models, options = patient()
    own = {"samples": 96, "threads": 2, "batch_size": 16, "checkpoint": folder / "open.case", "timeout": 0}
    case = quantmedic.collect(*models, prove=True, **own, **options)
    quantmedic.save_case(case, folder / "whole.case")
    quantmedic.write_report(quantmedic.judge(case), folder / "report", case=case)
    (folder / "open.case").unlink(missing_ok=True)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.nightly
def test_no_clock_decides_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUANTMEDIC_NO_PROVE", raising=False)
    found = {}
    for name, step in STEPS.items():
        with monkeypatch.context() as patched:
            lie(patched, step)
            (tmp_path / name).mkdir()
            found[name] = written(tmp_path / name)
    assert found["fast"] == found["slow"]
    assert {"whole.case", "report/report.json", "report/index.html"} <= found["fast"].keys()
