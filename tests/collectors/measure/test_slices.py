"""Slices of a data set: what they add up to is one pass over all of it to the bit, whoever measured which."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.properties import examples
from hypothesis import example, given
from hypothesis import strategies as st

from quantmedic.api.opening import open_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.case_file.archive import read_case, write_case
from quantmedic.collectors.case_file.case_arrays import arrays_of_statistics
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.collect_pair import Interrupted, Run, collect
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.slices import MAX_SLICES, Slicing, require_counted
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError, DataError

pytestmark = pytest.mark.thorough

SAMPLES = 200


def measured(
    validation: Any = None, mode: Any = "exact", threads: int = 1, progress: Progress = no_progress, **how: Any
) -> Case:
    source = images(SAMPLES) if validation is None else validation
    pair, datasets = open_pair(*patient(healthy=False)[0], CollectOptions(validation=source))
    options = Options(mode=mode, threads=threads, batch_size=8)
    return collect(Measurement(pair, datasets, options, progress=progress), **how)


def measured_slices(numbers: tuple[int, ...], mode: Any = "exact") -> list[Case]:
    """These slices, each measured by itself, as workers of a cluster do."""
    pair, datasets = open_pair(*patient(healthy=False)[0], CollectOptions(validation=images(SAMPLES)))
    run = Run(Measurement(pair, datasets, Options(mode=mode, threads=1, batch_size=8)))
    return [run.measure_slice("validation", number) for number in numbers]


def images(count: int) -> Any:
    """So many of the demo's validation images."""
    with np.load(patient(healthy=False)[1]["validation"]) as stored:
        return {name: stored[name][:count].astype(np.float32) / 255 for name in stored.files if name != "labels"}


def content(case: Case) -> dict[str, bytes]:
    """Every array of the validation data, as bytes; what weights make of the inputs only a whole pass tells."""
    arrays = arrays_of_statistics(case.statistics["validation"])
    return {name: array.tobytes() for name, array in arrays.items() if not name.startswith("columns.weights.")}


@pytest.fixture(scope="module")
def whole() -> dict[str, Case]:
    return {mode: measured(mode=mode) for mode in ("exact", "fast")}


def kept(case: Case, path: Path) -> Case:
    write_case(case, path)
    return read_case(path)


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "order"), [("exact", (2, 0, 1)), ("fast", (0, 2, 1, 5, 3, 4))])
def test_slices_add_up_to_one_pass(order, mode, whole, tmp_path):
    merged, *others = [kept(case, tmp_path / "slice.case") for case in measured_slices(order, mode)]
    for case in others:
        merged = merged.merge(case)
    assert merged.record.datasets["validation"].complete and not merged.sums
    assert content(merged) == content(whole[mode])
    finished = measured(mode=mode, resume=kept(merged, tmp_path / "merged.case"))
    assert finished.record == whole[mode].record
    columns = whole[mode].statistics["validation"].columns
    assert all(np.array_equal(finished.statistics["validation"].columns[n], columns[n]) for n in columns)


def test_threads_change_nothing(whole):
    assert content(measured(threads=3)) == content(whole["exact"])


def test_an_interrupted_pass_goes_on_in_the_middle_of_a_slice(whole, tmp_path):
    def checkpoint(case: Case) -> None:
        write_case(case, tmp_path / "part.case")

    def progress(stage: str, done: int, total: int | None) -> None:
        if done > 160:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        measured(checkpoint=checkpoint, progress=progress)
    part = read_case(tmp_path / "part.case")
    assert [span[1] for span in part.record.datasets["validation"].spans] == [2, 0]
    assert content(measured(resume=part)) == content(whole["exact"])


def test_slices_that_are_given_twice_are_refused_and_missing_ones_are_seen():
    first, third = measured_slices((0, 2))
    with pytest.raises(CaseError, match="measured twice"):
        first.merge(first)
    merged = first.merge(third)
    record = merged.record.datasets["validation"]
    assert not record.complete and record.seen < SAMPLES
    assert sum(own.slices for own in merged.sums["validation"]) == record.slices - 1


def test_a_stream_cannot_be_divided():
    with pytest.raises(DataError, match="how many samples"):
        require_counted({"validation": Slicing.of_samples(None, 1)})


@examples(300)
@given(st.integers(1, 1_000_000), st.sampled_from([1, 7, 32]))
@example(63, 1)
@example(64, 1)
def test_slices_follow_from_the_number_of_samples(samples, step):
    found = Slicing.of_samples(samples, step)
    assert found.size % step == 0 and 1 <= found.count <= MAX_SLICES
    assert (found.count - 1) * found.size < samples <= found.count * found.size
    assert found.size >= min(samples, 64)
