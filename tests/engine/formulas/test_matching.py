"""Which layers of two cases are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.formulas.matching import Matching, match_layers


def layer(name: str | None, op_type: str = "Conv", channels: int | None = None) -> LayerFacts:
    return LayerFacts.model_validate(
        {"name": name, "float_name": name, "op_type": op_type, "weight": {"channels": channels}}
    )


def pairs(found: Matching) -> list[tuple[int, int, str]]:
    return [(pair.before, pair.after, pair.how) for pair in found.pairs]


def test_names_come_first_whatever_the_order() -> None:
    found = match_layers([layer("a"), layer("b"), layer("c")], [layer("c"), layer("a"), layer("b")])
    assert pairs(found) == [(2, 0, "name"), (0, 1, "name"), (1, 2, "name")]
    assert found.only_before == found.only_after == ()


def test_names_that_shifted_match_by_place_and_kind_between_their_neighbours() -> None:
    before = [layer("in"), layer("conv_1", channels=8), layer("relu_2", "Relu"), layer("out", "Gemm")]
    after = [layer("in"), layer("conv_7", channels=8), layer("relu_8", "Relu"), layer("out", "Gemm")]
    assert pairs(match_layers(before, after)) == [
        (0, 0, "name"),
        (1, 1, "position"),
        (2, 2, "position"),
        (3, 3, "name"),
    ]


def test_a_layer_that_was_added_or_changed_in_kind_stands_alone() -> None:
    before = [layer("a"), layer("b1", channels=8), layer("b2", channels=16), layer("c")]
    after = [layer("a"), layer("x1", channels=8), layer("x", "Relu"), layer("x2", channels=16), layer("x3", channels=4)]
    found = match_layers(before, [*after, layer("c")])
    assert pairs(found)[1:3] == [(1, 1, "position"), (2, 3, "position")]
    assert found.only_before == () and found.only_after == (2, 4)
    unlike = match_layers([layer("a", "Conv", 3)], [layer("b", "Gemm", 10), layer("c", "Conv", 4)])
    assert unlike == Matching((), (0,), (0, 1))


def test_repeated_and_missing_names_match_once() -> None:
    before = [layer("a"), layer("a"), layer(None, "Add")]
    found = match_layers(before, [layer("a"), layer(None, "Add")])
    assert pairs(found) == [(0, 0, "name"), (2, 1, "position")]
    assert found.only_before == (1,)


names = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["Conv", "Relu"])), max_size=12)


@given(names, names)
def test_every_layer_has_one_place(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> None:
    before, after = ([layer(*entry) for entry in entries] for entries in (old, new))
    found = match_layers(before, after)
    assert sorted([pair.before for pair in found.pairs] + list(found.only_before)) == list(range(len(before)))
    assert sorted([pair.after for pair in found.pairs] + list(found.only_after)) == list(range(len(after)))
    for pair in found.pairs:
        same = before[pair.before].name == after[pair.after].name
        assert same or (pair.how == "position" and before[pair.before].op_type == after[pair.after].op_type)
    swapped = {(pair.after, pair.before) for pair in match_layers(after, before).pairs if pair.how == "name"}
    assert swapped == {(pair.before, pair.after) for pair in found.pairs if pair.how == "name"}


@pytest.mark.thorough
def test_a_long_network_with_other_names_is_matched() -> None:
    """In time that grows with its length: the alternative takes hours."""
    before = [layer(f"a{i}", "Conv", i % 7) for i in range(10_000)]
    after = [layer(f"b{i}", "Conv", i % 7) for i in range(10_000)]
    assert len(match_layers(before, [*after[:4000], layer("new", "Relu"), *after[4000:]]).pairs) == 10_000
