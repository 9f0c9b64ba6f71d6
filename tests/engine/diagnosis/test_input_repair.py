"""What undoes a mistake in the representative inputs: as an array, and as the text that a user runs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, RelationFacts
from quantmedic.engine.diagnosis.input_repair import InputRepair, input_repair

Array = NDArray[Any]
RIGHT = np.random.default_rng(0).normal((0.0, 1.0, 4.0), (1.0, 2.0, 3.0), (64, 8, 8, 3)).astype(np.float32)
RIGHT = np.ascontiguousarray(RIGHT.transpose(0, 3, 1, 2))
STEP, MEAN = (np.array(v, np.float32).reshape(1, 3, 1, 1) for v in ((1.0, 2.0, 0.5), (0.3, -1.0, 2.0)))
LINES = ((2.0, 0.1), (0.3, -0.2), (7.0, 1 / 3))


def facts(**more: Any) -> DatasetFacts:
    return DatasetFacts(input="image", channel_axis=1, mean=(0.0, 1.0, 4.0), std=(1.0, 2.0, 3.0), **more)


def moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x.mean(axis=(0, 2, 3)).tolist()), tuple(x.std(axis=(0, 2, 3)).tolist())


def wrong_inputs(kind: str) -> Array:
    """The right inputs with a mistake."""
    if kind == "turn":
        return np.ascontiguousarray(RIGHT[:, ::-1])
    if kind == "turned pixels":
        return np.ascontiguousarray((RIGHT[:, ::-1] - MEAN[:, ::-1]) / STEP[:, ::-1] * STEP + MEAN)
    if kind == "one line":
        return (RIGHT - np.float32(0.5)) / np.float32(3)
    slopes, offsets = (np.array(v, np.float32).reshape(-1, 1, 1) for v in zip(*LINES, strict=True))
    return np.asarray((RIGHT - offsets) / slopes, np.float32)


def repair_of(kind: str) -> InputRepair:
    known = {"name": "image", "axis": 1, "wrong": moments(wrong_inputs(kind)), "right": moments(RIGHT)}
    if kind.startswith("turn"):
        step, low = tuple(STEP.ravel().tolist()), tuple(MEAN.ravel().tolist())
        grids = {"lattice_step": step, "lattice_low": low} if kind == "turned pixels" else {}
        mine = facts(role="representative", **grids).model_copy(update=_as_facts(known["wrong"]))
        other = facts(role="validation", **grids).model_copy(update=_as_facts(known["right"]))
        found = input_repair("channel-order-mismatch", {"representative": mine, "validation": other})
        assert found is not None
        return found
    return InputRepair("map", lines=((3.0, 0.5),) if kind == "one line" else LINES, **known)


def _as_facts(known: tuple[tuple[float, ...], tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
    return {"mean": known[0], "std": known[1]}


def run_text(repair: InputRepair, feeds: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """What the printed function gives."""
    names: dict[str, Any] = {"np": np}
    exec(compile(repair.code(), "repair", "exec"), names)
    found: list[dict[str, Array]] = names["repaired"](feeds)
    return found


def feeds_of(x: Array) -> list[dict[str, Array]]:
    """Batches with a last one of another size, and a second input."""
    return [{"image": x[i : i + 30], "length": np.arange(len(x[i : i + 30]))} for i in range(0, len(x), 30)]


def test_the_text_does_exactly_what_the_trial_does() -> None:
    for kind in ("turn", "turned pixels", "one line", "line per channel"):
        repair, wrong = repair_of(kind), wrong_inputs(kind)
        assert np.allclose(repair.change(wrong), RIGHT, atol=1e-5), kind
        for feed, given in zip(run_text(repair, feeds_of(wrong)), feeds_of(wrong), strict=True):
            np.testing.assert_array_equal(feed["image"], repair.change(given["image"]), strict=True)
            np.testing.assert_array_equal(feed["length"], given["length"])
        # Inputs that are right already stay as they are.
        for feed, given in zip(run_text(repair, feeds_of(RIGHT)), feeds_of(RIGHT), strict=True):
            np.testing.assert_array_equal(feed["image"], given["image"])


def test_blank_samples_are_left_out_with_all_that_belongs_to_them() -> None:
    repair, x = InputRepair("drop", "image", least=0.5), RIGHT.copy()
    x[:30] = x[40] = 7.0
    found = run_text(repair, feeds_of(x))
    assert [len(feed["image"]) for feed in found] == [29, 4], "a batch of blanks vanishes"
    assert found[0]["length"].tolist() == [*range(10), *range(11, 30)]
    assert np.concatenate([feed["image"] for feed in found]).tobytes() == x[repair.find_kept(x)].tobytes()


def test_strays_are_left_out_by_their_size_with_or_without_a_validation_set() -> None:
    x = RIGHT.copy()
    x[17] = 40.0
    mine = facts(role="representative", stray_samples=(17,), stray_limit=15.0)
    repair = input_repair("stray-samples", {"representative": mine})
    assert repair is not None and repair.words == "representative inputs without sample 17"
    assert repair.find_kept(x).tolist() == [*range(17), *range(18, len(x))]
    found = run_text(repair, feeds_of(x))
    assert np.concatenate([feed["image"] for feed in found]).tobytes() == x[repair.find_kept(x)].tobytes()
    assert run_text(repair, feeds_of(RIGHT))[0]["image"].tobytes() == feeds_of(RIGHT)[0]["image"].tobytes()
    none = facts(role="representative", stray_samples=(), stray_limit=None)
    assert input_repair("stray-samples", {"representative": none}) is None


def test_the_repair_follows_from_the_facts_of_both_sets() -> None:
    quantiles = RelationFacts(method="quantiles", slope=0.5, offset=1.0)
    lattice = RelationFacts(method="lattice", slope=0.5, offset=1.0)
    mine = facts(role="representative", lattice_step=(1.0, 1.0, 2.0), lattice_low=(0.0, 0.0, -4.0), relation=lattice)
    other = facts(role="validation", lattice_step=(0.5, 0.1, 1.0), lattice_low=(-1.0, -2.0, 3.0))
    found = input_repair("preprocessing-mismatch", {"representative": mine, "validation": other})
    assert found is not None and found.lines == ((0.5, -1.0), (0.1, -2.0), (0.5, 5.0))
    sets = {"representative": mine.model_copy(update={"relation": quantiles}), "validation": other}
    found = input_repair("preprocessing-mismatch", sets)
    assert found is not None and found.lines == ((2.0, -2.0),)
    assert found.words == "representative inputs mapped to 2·x -2"
    turned = input_repair("channel-order-mismatch", sets)
    assert turned is not None and (turned.kind, turned.axis) == ("turn", 1)


def test_where_nothing_undoes_the_mistake_there_is_no_repair() -> None:
    mine, other = facts(role="representative"), facts(role="validation")
    sets = {"representative": mine, "validation": other}
    assert input_repair("preprocessing-mismatch", sets) is None, "the relation is not known"
    assert input_repair("random-data", sets) is None
    assert input_repair("channel-order-mismatch", {"representative": mine}) is None, "nothing to compare with"
    flat = {**sets, "representative": mine.model_copy(update={"channel_axis": None})}
    assert input_repair("channel-order-mismatch", flat) is None, "no channels"
    for varied, is_repaired in [(1.0, True), (0.1, False), (None, False)]:
        blank = {**sets, "representative": mine.model_copy(update={"kept_deviation_ratio": varied})}
        assert (input_repair("blank-samples", blank) is not None) == is_repaired, "only where the others are better"
