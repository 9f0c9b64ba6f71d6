"""What trials learn on samples: the rounding of weights and the mean errors that biases make up for."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import conv_net, images, random, save_pair, static
from builders.trial_bench import Bench, bench
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.rules.remedy_kinds import change_of, tried_change_of
from quantmedic.trials.from_onnx.onnx_remedies import edit, left_integer

pytestmark = pytest.mark.thorough

BIASES, ROUNDING = (Change(learned=frozenset({what})) for what in ("biases", "rounding"))


def shifted(model: onnx.ModelProto, steps: int) -> onnx.ModelProto:
    """Every weight code some steps lower."""
    for tensor in model.graph.initializer:
        codes = numpy_helper.to_array(tensor)
        if codes.dtype == np.int8 and codes.ndim > 1:
            lower = np.maximum(codes.astype(np.int16) - steps, -127).astype(np.int8)
            tensor.CopyFrom(numpy_helper.from_array(lower, tensor.name))
    return model


@pytest.fixture(params=[QuantFormat.QDQ, QuantFormat.QOperator], ids=["QDQ", "QOperator"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A network whose weights are all shifted to one side."""
    model = static(conv_net(), {"image": images()}, tmp_path, quant_format=request.param)
    return bench(tmp_path, conv_net(), shifted(model, 4))


def test_both_are_learned_on_copies_that_keep_their_form(broken: Bench) -> None:
    before = broken.simulated_db(Change())
    stored = broken.models.quantized.model.SerializeToString()
    for change in (BIASES, ROUNDING, BIASES.join(ROUNDING)):
        edited = broken.edit(change)
        assert broken.edited_db(change) > before + 3
        assert edited.unedited == ()
        assert left_integer(broken.models, broken.case, edited.model, change) == ()
        assert [n.op_type for n in edited.model.graph.node] == [
            n.op_type for n in broken.models.quantized.model.graph.node
        ]
    assert broken.edited_db(ROUNDING) > before + 15, "the nearest codes are better than shifted ones"
    ranges = broken.change("recalibrate")
    both = ranges.join(ROUNDING).join(BIASES)
    assert both.learned == {"rounding", "biases"}
    assert broken.edited_db(both) > broken.edited_db(ranges) + 10, "they come on top of other changes"
    arguments: tuple[Any, ...] = ("learned-rounding", broken.case, broken.facts, broken.every)
    assert set(change_of(*arguments).weights.values()) == {"float"}, "simulated is the most that it can gain"
    assert tried_change_of(*arguments) == ROUNDING
    with pytest.raises(ValueError, match="without samples"):
        edit(broken.models, broken.case, BIASES)
    assert broken.models.quantized.model.SerializeToString() == stored


@pytest.mark.nightly
def test_a_proof_learns_on_one_half_and_judges_on_the_other(tmp_path: Path) -> None:
    """A bias shift is named, and both of its remedies are carried out and measured."""
    data, model = random(5, 96, 3, 8, 8), conv_net()
    paths = save_pair(tmp_path, model, shifted(static(model, {"image": data}, tmp_path), 9))
    case = quantmedic.collect(*paths, representative={"image": data}, validation={"image": data[::-1] + 0.1}, prove=600)
    assert case.record.proof is not None
    trials = {trial.kind: trial for trial in case.record.proof.trials if not trial.after}
    learned = [trials[kind] for kind in ("corrected-biases", "learned-rounding") if kind in trials]
    assert learned and all(trial.failed is None and trial.proven and not trial.bound for trial in learned)


def test_an_editor_that_cannot_learn_is_not_asked_to(broken: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the trials of the whole network those are left out, and none of them fails."""
    monkeypatch.setattr("quantmedic.trials.trial.learns", lambda models: False)
    data = {"image": images(96)}
    paths = (broken.models.float_graph.path, broken.models.quantized.path)
    proof = quantmedic.collect(*paths, validation=data, prove=600).record.proof
    assert proof is not None
    assert not any(
        trial.key in ("corrected-biases:everywhere", "learned-rounding:everywhere") for trial in proof.trials
    )
