"""What undoes a mistake in the representative inputs: as an array, and as the text that a user runs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, RelationFacts
from quantmedic.engine.diagnosis.input_repair import InputRepair, Lines, input_repair

Array = NDArray[Any]
RIGHT = np.random.default_rng(0).normal((0.0, 1.0, 4.0), (1.0, 2.0, 3.0), (64, 8, 8, 3)).astype(np.float32)
RIGHT = np.ascontiguousarray(RIGHT.transpose(0, 3, 1, 2))
LINES = ((2.0, 0.1), (0.3, -0.2), (7.0, 1 / 3))


def facts(**more: Any) -> DatasetFacts:
    return DatasetFacts(input="image", channel_axis=1, mean=(0.0, 1.0, 4.0), std=(1.0, 2.0, 3.0), **more)


def moments(x: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x.mean(axis=(0, 2, 3)).tolist()), tuple(x.std(axis=(0, 2, 3)).tolist())


def wrong_inputs(order: tuple[int, ...], lines: Lines) -> Array:
    """The right inputs with mistakes."""
    slopes, offsets = (np.array(v, np.float32).reshape(-1, 1, 1) for v in zip(*(lines or ((1.0, 0.0),)), strict=True))
    x = (RIGHT - offsets) / slopes
    return np.ascontiguousarray(x[:, np.argsort(order)] if order else x, np.float32)


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
    for order, lines in [((2, 1, 0), ()), ((), ((3.0, 0.5),)), ((), LINES), ((2, 1, 0), LINES), ((1, 2, 0), LINES)]:
        wrong = wrong_inputs(order, lines)
        repair = InputRepair("image", 1, order, lines, wrong=moments(wrong), right=moments(RIGHT))
        assert np.allclose(repair.change(wrong), RIGHT, atol=1e-5), (order, lines)
        for feed, given in zip(run_text(repair, feeds_of(wrong)), feeds_of(wrong), strict=True):
            np.testing.assert_array_equal(feed["image"], repair.change(given["image"]), strict=True)
            np.testing.assert_array_equal(feed["length"], given["length"])
        # Inputs that are right already stay as they are.
        for feed, given in zip(run_text(repair, feeds_of(RIGHT)), feeds_of(RIGHT), strict=True):
            np.testing.assert_array_equal(feed["image"], given["image"])


def test_images_are_read_in_the_layout_in_which_they_are_smooth() -> None:
    """By the trial and by the text, for channels first and last; what is right already stays."""
    rng = np.random.default_rng(4)
    smooth = np.cumsum(np.cumsum(rng.normal(0, 0.1, (61, 3, 12, 10)), axis=2), axis=3)
    planes = np.ascontiguousarray(smooth + rng.normal(0, 3, (61, 3, 1, 1)), np.float32)
    pixels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    lines = np.ascontiguousarray(planes.transpose(0, 2, 1, 3))
    for axis, right, others in [(1, planes, (pixels, lines)), (3, pixels, (planes, lines))]:
        repair = InputRepair("image", axis, relaid=True)
        for wrong in (*(np.reshape(x, right.shape) for x in others), right):
            np.testing.assert_array_equal(repair.change(wrong), right, strict=True)
            for feed, expected in zip(run_text(repair, feeds_of(wrong)), feeds_of(right), strict=True):
                np.testing.assert_array_equal(feed["image"], expected["image"], strict=True)


def test_a_layout_is_repaired_only_where_no_channel_was_normalized_in_between() -> None:
    right = DatasetFacts(role="validation", input="image", mean=(0.2, -0.1, -0.4), std=(1.0, 1.0, 1.0))
    mine = DatasetFacts(
        role="representative",
        input="image",
        channel_axis=1,
        layout_reread=True,
        mean=(-0.1, -0.1, -0.1),
        std=(1.03, 1.03, 1.03),
    )
    repair = input_repair("layout-mismatch", {"representative": mine, "validation": right})
    assert repair is not None and repair.relaid
    for other in ({"layout_reread": False}, {"channel_axis": 2}, {"mean": (-0.3, -0.1, 4.2), "std": (1.1, 1.4, 1.5)}):
        changed = mine.model_copy(update=other)
        assert input_repair("layout-mismatch", {"representative": changed, "validation": right}) is None


def test_blank_samples_are_left_out_with_all_that_belongs_to_them() -> None:
    repair, x = InputRepair("image", least=0.5), RIGHT.copy()
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


def test_either_cause_is_undone_with_the_other() -> None:
    both = RelationFacts(
        reordered=True, order=(2, 1, 0), undoing_slopes=(0.5, 2.0, 1.0), undoing_offsets=(0.0, 1.0, 2.0)
    )
    other = facts(role="validation")
    for cause in ("preprocessing-mismatch", "channel-order-mismatch"):
        found = input_repair(
            cause, {"representative": facts(role="representative", relation=both), "validation": other}
        )
        assert found is not None and (found.order, found.lines) == ((2, 1, 0), ((0.5, 0.0), (2.0, 1.0), (1.0, 2.0)))
        assert (
            found.words == "representative inputs with their channels reversed and mapped to 0.5·x +0, 2·x +1, 1·x +2"
        )
    one = RelationFacts(reordered=False, order=(2, 1, 0), undoing_slopes=(2.0,), undoing_offsets=(-2.0,))
    sets = {"representative": facts(role="representative", relation=one), "validation": other}
    found = input_repair("preprocessing-mismatch", sets)
    assert found is not None and found.words == "representative inputs mapped to 2·x -2"


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
