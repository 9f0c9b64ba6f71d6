"""The table of remedy kinds: every kind in use has a row, and what a row names exists."""

from importlib import import_module

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.proof import FLOAT_SET
from quantmedic.engine.formulas import change
from quantmedic.engine.rules.remedy_kinds import (
    _ROWS,
    AT_MOST,
    BOUNDS,
    EDIT,
    REMEDY_KINDS,
    SIMULATIONS,
    kinds_everywhere,
)

REMEDIES = load_rulebase().remedies
FLOAT = REMEDY_KINDS["float"]


def test_every_kind_that_a_remedy_names_has_a_row() -> None:
    assert {remedy.simulate for remedy in REMEDIES.values()} - {None} <= set(SIMULATIONS)


def test_what_a_row_names_exists() -> None:
    trials = [kind.trial.rsplit(".", 1) for kind in REMEDY_KINDS.values()]
    assert not [own for own in trials if not callable(getattr(import_module(f"quantmedic.trials.{own[0]}"), own[1]))]
    everywhere = {kind.everywhere.remedy for kind in REMEDY_KINDS.values() if kind.everywhere is not None}
    assert everywhere <= set(REMEDIES)
    assert all(isinstance(kind.title, str) for kind in REMEDY_KINDS.values())


def test_the_search_for_float_layers_is_prescribed() -> None:
    """Else the one set that heals would be proven, and something smaller prescribed."""
    everywhere = REMEDY_KINDS[FLOAT_SET].everywhere
    assert everywhere is not None and everywhere.remedy == "keep-layers-float"


def test_every_function_that_fits_a_change_has_a_row() -> None:
    in_use = {function for kind in REMEDY_KINDS.values() for function in (kind.change, kind.tried)}
    fitting = {
        name
        for name, function in vars(change).items()
        if not name.startswith("_") and getattr(function, "__annotations__", {}).get("return") is change.Change
    }
    # A part of quantizing anew that only the second look makes.
    assert {name for name in fitting if getattr(change, name) not in in_use} == {"requantize_weights"}


def test_a_bound_is_what_a_remedy_gains_at_most() -> None:
    assert set(BOUNDS) == {"float-weights", "float-tensors"}
    assert set(BOUNDS) < set(SIMULATIONS)
    assert set(AT_MOST) == {*BOUNDS, "learned-rounding"}, "its trial is real, its prediction a most"


def test_dear_kinds_are_tried_last() -> None:
    assert kinds_everywhere("early")[0] == "recalibrate"
    assert kinds_everywhere("late") == ("learned-rounding", "sixteen-bit")


def test_the_table_does_not_contradict_itself() -> None:
    assert len(REMEDY_KINDS) == len(_ROWS), "two rows for one kind"
    for row in _ROWS:
        turn = row.everywhere.turn if row.everywhere is not None else None
        assert row.change is not None or (row.trial != EDIT and turn is None), row.name
        assert row.bound is None or row.everywhere is None, "a bound cannot be prescribed for the whole network"
        assert not row.spreads or (row.is_remedy and row.bound is None and not row.spends_bits), row.name
        assert row.advised_as is None or row.advised_as in REMEDY_KINDS, row.name
