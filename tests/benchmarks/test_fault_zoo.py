"""The fault zoo cannot rot: a few of its cases end to end, and what its cuts promise."""

from argparse import Namespace

import fault_zoo
import numpy as np
import pytest
from zoo.cases import TUNING_CONTROLS, TUNING_KINDS, TUNING_NETWORKS, Spec, all_specs, build
from zoo.controls import CONTROLS
from zoo.fault import FAMILIES, FAULTS
from zoo.networks import NETWORKS
from zoo.patient import healthy
from zoo.quantizing import run
from zoo.running import Asked, ask_all, results
from zoo.score import place, render
from zoo.surgery import Inapplicable

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("zoo")


def test_cases_end_to_end(cache):
    """A global fault, a local one and a control: built, checked, named."""
    specs = [Spec("demo", ("not-normalized",)), Spec("demo", ("wide-branch",)), Spec("demo", control="per-channel")]
    found = list(results(specs, cache, jobs=1))
    assert [built.status for built, _ in found] == ["fault", "fault", "control"]
    answers = [answer for _, answer in found]
    assert [answer.error for answer in answers] == ["", "", ""]
    assert answers[0].names[0] == "preprocessing-mismatch"
    assert answers[1].names[0] == "unbalanced-concatenation"
    assert not answers[2].severe
    assert "false alarms on 1 healthy controls: 0 %" in render(found)


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
    assert set(FAULTS) > TUNING_KINDS
    assert set(CONTROLS) > TUNING_CONTROLS
    tuning = [spec for spec in all_specs() if spec.tuning]
    assert all(spec.network in TUNING_NETWORKS for spec in tuning)
    assert 0 < len(tuning) < len(list(all_specs())) / 2
    assert {fault.family for fault in FAULTS.values()} <= set(FAMILIES)
    assert len({spec.name for spec in all_specs()}) == len(list(all_specs()))


def test_places():
    assert place(("a", "b"), ["x", "b", "a"]) == 2
    assert place(("a",), ["x"]) is None
