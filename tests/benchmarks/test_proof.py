"""Proofs on cases of the fault zoo, and how they are scored."""

from pathlib import Path

import pytest
from zoo.cases import Built, Spec
from zoo.proof import Proved, metric_share, noise_share, render_proofs
from zoo.quantizing import Standing
from zoo.running import results

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """A mistake in the data; two layers that hurt only together; one layer of many that no rule names."""
    specs = [Spec("demo", ("not-normalized",)), Spec("resnet", ("wide-addend",)), Spec("csp", ("massive-channel",))]
    found = results(specs, tmp_path_factory.mktemp("zoo"), jobs=1, prove=300.0)
    return {built.spec.name: (built, answer.proof) for built, answer in found}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("demo/not-normalized", "recalibrate"),
        ("resnet/wide-addend", "float-set"),
        ("csp/massive-channel", "float-set"),
    ],
)
def test_the_first_proven_remedy_heals(answers, name, remedy):
    built, proof = answers[name]
    assert proof.stopped == "explained"
    assert proof.remedy == remedy
    assert proof.low_db > 10
    assert noise_share(built, proof.gain_db) > 0.95
    assert metric_share(built, proof) > 0.7
    assert proof.failed == ()


def test_the_table_counts_what_is_healed(answers):
    text = render_proofs(list(answers.values()))
    assert "at least 80 % back in 3 of 3 cases" in text


def standing(sqnr: float, score: float) -> Standing:
    return Standing(sqnr, sqnr, 0.9, 0.9, score, True)


def test_shares_of_what_the_fault_took():
    built = Built(Spec("demo", ("x",)), Path(), "fault", before=standing(0, 0.5), healed=standing(20, 0.9))
    assert noise_share(built, 20.0) == pytest.approx(1.0)
    assert noise_share(built, 10.0) == pytest.approx(0.9 / 0.99)
    assert noise_share(built, None) == 0.0
    assert metric_share(built, Proved("explained", 1, 1, metric=(0.5, 0.8))) == pytest.approx(0.75)
    assert metric_share(built, Proved("tried-all", 1, 1)) == 0.0
