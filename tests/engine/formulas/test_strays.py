"""Samples far above all others: found among data of every kind, and none in data that are wide by nature."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SampleTable
from quantmedic.engine.formulas.strays import strays_by_role, strays_of, words_of

Magnitudes = Callable[[np.random.Generator, int], np.ndarray]
DATA: dict[str, Magnitudes] = {
    "images": lambda rng, n: np.exp(0.25 * rng.standard_normal(n)),
    "sound": lambda rng, n: np.exp(1.2 * rng.standard_normal(n)),
    "log-normal embeddings": lambda rng, n: np.exp(2.5 * rng.standard_normal(n)),
    "power law": lambda rng, n: rng.pareto(1.0, n) + 1.0,
    "heavy power law": lambda rng, n: rng.pareto(0.5, n) + 1.0,
    "one magnitude": lambda rng, n: np.ones(n),
    "half silence": lambda rng, n: np.where(np.arange(n) % 2, 1e-4, np.exp(0.8 * rng.standard_normal(n))),
    "many are large": lambda rng, n: np.where(np.arange(n) % 10 == 0, 40.0, 1.0),
}


def table(sizes: np.ndarray) -> SampleTable:
    rows = np.zeros(len(sizes), SAMPLE_DTYPE)
    rows["mean"], rows["deviation"] = 0.6 * sizes, 0.8 * sizes
    return rows


@pytest.mark.thorough
def test_data_that_are_wide_by_nature_have_none() -> None:
    for kind, draw in DATA.items():
        for n in (16, 50, 200, 1000):
            found = [strays_of(table(draw(np.random.default_rng(seed), n))) for seed in range(50)]
            assert all(strays is not None for strays in found)
            with_strays = sum(bool(strays and strays.places) for strays in found)
            # A heavy power law may have some by chance.
            assert with_strays <= (2 if "power law" in kind else 0), (kind, n)


def test_strays_are_named_with_their_factor() -> None:
    for places, factor in itertools.product([(17,), (0, 90, 199)], [12.0, 255.0, 1e4]):
        sizes = DATA["images"](np.random.default_rng(3), 200)
        sizes[list(places)] = factor * np.median(sizes)
        found = strays_of(table(sizes))
        assert found is not None and found.places == places
        assert found.factor == pytest.approx(factor, rel=0.02)
        assert np.delete(sizes, places).max() < found.limit < sizes[list(places)].min()


def test_sound_has_a_stray_only_where_it_is_beyond_all_loudness() -> None:
    sizes = DATA["sound"](np.random.default_rng(3), 200)
    for factor, places in ((40.0, ()), (1e6, (5,))):
        sizes[5] = factor * np.median(sizes)
        found = strays_of(table(sizes))
        assert found is not None and found.places == places


def test_few_zero_and_broken_samples_do_not_tell() -> None:
    sizes = np.ones(15)
    sizes[3] = 40.0
    assert strays_of(table(sizes)) is None
    assert strays_of(table(np.zeros(40))) is None, "nothing but zeros"
    rows = table(np.ones(40))
    rows["deviation"][7], rows["nonfinite"][7] = np.nan, 1
    found = strays_of(rows)
    assert found is not None and found.places == (), "values that are not finite have their own rule"


def test_what_the_other_set_shows_too_belongs_to_the_data() -> None:
    for factor, places in [(1.0, (9,)), (30.0, ())]:
        mine, other = np.ones(64), np.ones(64)
        mine[9], other[2] = 40.0, factor
        found = strays_by_role({"representative": table(mine), "validation": table(other)})["representative"]
        assert found is not None and found.places == places


def test_samples_are_named_as_text() -> None:
    assert words_of((17,)) == "sample 17"
    assert words_of((17, 90)) == "samples 17, 90"
    assert words_of(tuple(range(8))) == "8 samples (0, 1, 2, 3, 4, …)"
