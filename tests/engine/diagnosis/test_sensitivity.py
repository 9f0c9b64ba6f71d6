"""The sensitivity record: shares, order, and what is still missing."""

import math
from collections.abc import Sequence

import pytest
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.contract.searches import (
    MODES,
    Outcome,
    SensitivityRecord,
    SensitivityUnit,
)

few = examples(30)
powers = st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=12)


def empty(units: int, sqnr_db: float) -> SensitivityRecord:
    outcome = Outcome(sqnr_db=sqnr_db)
    return SensitivityRecord(
        quantmedic_version="1",
        float_model="float.onnx",
        quantized_model="int8.onnx",
        float_sha256="f",
        quantized_sha256="q",
        data="val.npz",
        data_sha256="d",
        samples=64,
        seed=0,
        batch_size=16,
        metric=None,
        metric_output=None,
        float_metric=None,
        modes=MODES,
        units=tuple(SensitivityUnit(name=f"layer{k}", op_type="Conv", quantized=("weight",)) for k in range(units)),
        unsimulated=(),
        columns=None,
        deployed=outcome,
        simulated=outcome,
    )


def decibels(noise: float) -> float:
    return -10.0 * math.log10(noise)


def additive(noises: Sequence[float]) -> SensitivityRecord:
    """What independent layers would give."""
    record = empty(len(noises), decibels(math.fsum(noises)))
    for mode, unit in record.planned:
        rest = math.fsum(noise for k, noise in enumerate(noises) if k != unit)
        noise = {"one": noises[unit], "all-but-one": rest, "cumulative": math.fsum(noises[: unit + 1])}[mode]
        record = record.add_run(mode, unit, Outcome(sqnr_db=decibels(noise) if noise else math.inf))
    return record


@given(powers)
@few
def test_shares_of_independent_layers_add_up_alike_in_every_mode(noises: list[float]) -> None:
    record = additive(noises)
    total = math.fsum(noises)
    by_mode = {mode: [run for run in record.runs if run.mode == mode] for mode in MODES}
    for mode in ("one", "all-but-one"):
        assert sum(run.share or 0.0 for run in by_mode[mode]) == pytest.approx(1.0, abs=1e-6)
    for unit, noise in enumerate(noises):
        assert by_mode["one"][unit].share == pytest.approx(noise / total, rel=1e-6)
        assert by_mode["all-but-one"][unit].share == pytest.approx(noise / total, abs=1e-6)
    assert by_mode["cumulative"][-1].share == pytest.approx(1.0)


@given(powers, st.integers(1, 12))
@few
def test_leading_layers_are_the_noisiest_ones(noises: list[float], count: int) -> None:
    record = additive(noises)
    loudest = sorted(noises, reverse=True)[:count]
    # Noises that differ in their last digits only have the same SQNR.
    assert [noises[run.unit] for run in record.leading("one", count)] == pytest.approx(loudest, rel=1e-9)
    steps = record.leading("cumulative", count)
    assert [run.unit for run in steps] == sorted(run.unit for run in steps)
    assert [run.unit for run in record.rank_runs("cumulative")] == list(range(len(noises)))


@given(powers, st.randoms(use_true_random=False))
@few
def test_runs_in_any_order_make_the_same_record(noises: list[float], order) -> None:
    whole = additive(noises)
    runs = list(whole.runs)
    order.shuffle(runs)
    record = empty(len(noises), whole.simulated.sqnr_db)
    for run in runs:
        assert (run.mode, run.unit) in record.missing
        record = record.add_run(run.mode, run.unit, Outcome(sqnr_db=run.sqnr_db))
    assert record == whole and record.missing == ()
    assert SensitivityRecord.model_validate_json(record.model_dump_json()) == record, "JSON brings back every bit"


def test_infinite_ratios_survive_json_and_leave_no_share() -> None:
    record = empty(1, math.inf).add_run("one", 0, Outcome(sqnr_db=math.inf))
    assert record.runs[0].share is None and record.leading("one", 5) == []
    assert record.simulation_gap_db == 0.0
    again = SensitivityRecord.model_validate_json(record.model_dump_json())
    assert again == record and again.runs[0].sqnr_db == math.inf


def test_a_layer_whose_absence_makes_it_worse_has_a_negative_share() -> None:
    record = empty(2, 20.0).add_run("all-but-one", 0, Outcome(sqnr_db=17.0))
    assert record.runs[0].share == pytest.approx(1 - 10**0.3)
    assert record.leading("all-but-one", 5) == []
