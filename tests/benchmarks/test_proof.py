"""Proofs on cases of the fault zoo, and how they are scored."""

from pathlib import Path

import pytest
from zoo.cases import Built, Spec
from zoo.proof import Proved, metric_share, noise_share
from zoo.quantizing import Standing
from zoo.running import results


@pytest.mark.nightly
def test_layers_that_hurt_are_found_by_their_proof(tmp_path: Path) -> None:
    """Two layers that hurt only together; one layer of many that no rule names."""
    specs = [Spec("resnet", ("wide-addend",)), Spec("csp", ("massive-channel",))]
    for built, answer in results(specs, tmp_path, jobs=1, prove=300.0):
        proof = answer.proof
        assert (proof.stopped, proof.remedy, proof.failed) == ("explained", "float-set", ()), built.spec.name
        assert proof.low_db > 10 and noise_share(built, proof.gain_db) > 0.95, built.spec.name
        assert metric_share(built, proof) > 0.7, built.spec.name


def standing(sqnr: float, score: float) -> Standing:
    return Standing(sqnr, sqnr, 0.9, 0.9, score, True)


def test_shares_of_what_the_fault_took():
    built = Built(Spec("demo", ("x",)), Path(), "fault", before=standing(0, 0.5), healed=standing(20, 0.9))
    assert noise_share(built, 20.0) == pytest.approx(1.0)
    assert noise_share(built, 10.0) == pytest.approx(0.9 / 0.99)
    assert noise_share(built, None) == 0.0
    assert metric_share(built, Proved("explained", 1, 1, metric=(0.5, 0.8))) == pytest.approx(0.75)
    assert metric_share(built, Proved("tried-all", 1, 1)) == 0.0
