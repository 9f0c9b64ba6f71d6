"""The fault zoo cannot rot: a few of its cases end to end, and what its cuts promise."""

from argparse import Namespace

import fault_zoo
import numpy as np
import pytest
from zoo.asking import Asked, ask_all
from zoo.cases import TUNING_NETWORKS, Spec, all_specs, build
from zoo.fault import FAMILIES, FAULTS
from zoo.networks import NETWORKS
from zoo.paste import Pasted
from zoo.paste_table import counts, fixed_rows, is_healed, render, rows
from zoo.patient import healthy
from zoo.quantizing import run
from zoo.surgery import Inapplicable

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.nightly
def test_cases_end_to_end(cache):
    """A global fault is proved and its prescription followed, a local one and a control are given to ``fix``."""
    followed = Asked(prove=300.0, follow=True)
    ((ill, proved),) = ask_all([Spec("demo", ("not-normalized",))], cache, 1, followed)
    specs = [Spec("demo", ("wide-branch",)), Spec("demo", control="per-channel")]
    repaired = list(ask_all(specs, cache, 1, Asked(fix=20.0)))
    (branch, second), (control, healthy) = repaired
    assert [built.status for built in (ill, branch, control)] == ["fault", "fault", "control"]
    assert [answer.said.error for answer in (proved, second, healthy)] == ["", "", ""]
    assert (proved.said.names[0], second.said.names[0]) == ("preprocessing-mismatch", "unbalanced-concatenation")
    assert not healthy.said.serious

    pasted = proved.pasted
    assert pasted.outcome == "ran" and counts(ill) and is_healed(ill, pasted)
    assert pasted.samples in (128, 256) and not pasted.worse and pasted.is_near(pasted.same_db)
    assert pasted.shown.is_proven and pasted.gain_db == pytest.approx(pasted.pooled_db, abs=0.01)
    assert "1 of 1 (100 %) of those with a configuration" in render("the pasted prescription", rows([(ill, proved)]))

    fixed = second.fixed
    assert fixed.outcome == "ran" and is_healed(branch, fixed) and fixed.samples == 128
    assert fixed.shown.grade == "executed" and fixed.shown.gain_db == pytest.approx(fixed.same_db, abs=0.01)
    assert fixed.gain_db != fixed.same_db, "measured on samples held back"
    assert healthy.fixed == Pasted("no prescription", reason="verdict healthy")
    assert "healed by fix: 1 of 1 (100 %)" in render("fix", fixed_rows(repaired))


def test_without_a_reporting_seed_unseen_faults_are_only_built(cache):
    ((built, answer),) = ask_all([Spec("gru", ("coarse-output",))], cache, 1, Asked(build_only=True))
    assert built.usable and answer is None
    for seed in (None, 3, 105):
        assert fault_zoo.opened(Namespace(seed=seed)) is None


def test_a_case_is_built_once(cache):
    built = build(Spec("gru", ("coarse-output",)), cache)
    files = {path: path.stat().st_mtime_ns for path in built.folder.iterdir()}
    again = build(Spec("gru", ("coarse-output",)), cache)
    assert again == built
    assert files == {path: path.stat().st_mtime_ns for path in built.folder.iterdir()}


def test_cuts_keep_the_function():
    for network in ("demo", "resnet", "vit"):
        sound = healthy(NETWORKS[network])
        (expected,) = run(sound.network, sound.model, sound.validation[:32])
        for kind in ("outlier-channel", "wide-branch", "wide-addend", "cancelled-offset", "heavy-tails"):
            try:
                ill = FAULTS[kind].apply(sound)
            except Inapplicable:
                continue
            (given,) = run(ill.network, ill.model, ill.validation[:32])
            np.testing.assert_allclose(given, expected, atol=0.02 * np.abs(expected).max(), err_msg=f"{network} {kind}")


def test_the_split_names_what_exists():
    assert set(NETWORKS) > TUNING_NETWORKS
    tuning = [spec for spec in all_specs() if spec.tuning]
    assert all(spec.network in TUNING_NETWORKS for spec in tuning)
    assert 0 < len(tuning) < len(list(all_specs())) / 2
    assert {fault.family for fault in FAULTS.values()} <= set(FAMILIES)
    assert len({spec.name for spec in all_specs()}) == len(list(all_specs()))
