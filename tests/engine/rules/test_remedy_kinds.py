"""The table of remedy kinds: every kind in use has a row, and what a row names exists."""

from dataclasses import replace
from importlib import import_module

import pytest

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.proof import FLOAT_SET
from quantmedic.engine.formulas import change
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.remedy_kinds import (
    AT_MOST,
    BOUNDS,
    EDIT,
    HALVES,
    REMEDY_KINDS,
    SIMULATIONS,
    RemedyKind,
    check_rows,
    kinds_everywhere,
)

every_kind = pytest.mark.parametrize("kind", REMEDY_KINDS.values(), ids=lambda kind: kind.name)
REMEDIES = load_rulebase().remedies
FLOAT = REMEDY_KINDS["float"]


@pytest.mark.parametrize(
    "remedy", [each for each in REMEDIES.values() if each.simulate is not None], ids=lambda r: r.id
)
def test_every_kind_that_a_remedy_names_has_a_row(remedy: Remedy) -> None:
    assert remedy.simulate in SIMULATIONS


@every_kind
def test_every_trial_is_a_function(kind: RemedyKind) -> None:
    module, name = kind.trial.rsplit(".", 1)
    assert callable(getattr(import_module(f"quantmedic.trials.{module}"), name))


@every_kind
def test_what_suits_the_whole_network_is_a_remedy(kind: RemedyKind) -> None:
    assert kind.everywhere is None or kind.everywhere.remedy in REMEDIES


def test_the_search_for_float_layers_is_prescribed() -> None:
    """Else the one set that heals would be proven, and something smaller prescribed."""
    everywhere = REMEDY_KINDS[FLOAT_SET].everywhere
    assert everywhere is not None and everywhere.remedy == "keep-layers-float"


def test_titles_are_words() -> None:
    assert all(isinstance(kind.title, str) for kind in REMEDY_KINDS.values())


def test_every_function_that_fits_a_change_has_a_row() -> None:
    in_use = {function for kind in REMEDY_KINDS.values() for function in (kind.change, kind.tried)}
    fitting = {
        name
        for name, function in vars(change).items()
        if not name.startswith("_") and getattr(function, "__annotations__", {}).get("return") is change.Change
    }
    assert not {name for name in fitting if getattr(change, name) not in in_use}


def test_a_bound_is_what_a_remedy_gains_at_most() -> None:
    assert set(BOUNDS) == {"float-weights", "float-tensors"}
    assert set(BOUNDS) < set(SIMULATIONS)
    assert set(AT_MOST) == {*BOUNDS, "learned-rounding"}, "its trial is real, its prediction a most"


def test_halves_are_no_remedies() -> None:
    assert HALVES == ("without-weight-noise", "without-activation-noise")
    assert not set(HALVES) & set(SIMULATIONS)


def test_dear_kinds_are_tried_last() -> None:
    assert kinds_everywhere("early")[0] == "recalibrate"
    assert kinds_everywhere("late") == ("learned-rounding", "sixteen-bit")


@pytest.mark.parametrize(
    "rows, message",
    [
        ([FLOAT, FLOAT], "two rows"),
        ([replace(FLOAT, change=None)], "neither a change nor a trial"),
        ([replace(REMEDY_KINDS["recalibrate"], bound="ranges")], "cannot be prescribed"),
        ([replace(REMEDY_KINDS["recalibrate"], change=None, trial="float_set.float_set")], "no change"),
        ([replace(FLOAT, advised_as="double")], "has no row"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(rows: list[RemedyKind], message: str) -> None:
    assert FLOAT.trial == EDIT
    with pytest.raises(ValueError, match=message):
        check_rows(rows)
