"""Where noise begins in an IR of which some tensors cannot be shown without changing what it computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import random
from builders.openvino_models import fake_quantize, openvino, rounded_weights, save_openvino_pair

import quantmedic
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.openvino_session import Session, Sessions
from quantmedic.collectors.from_openvino.openvino_site import Place

pytestmark = pytest.mark.thorough

X = random(4, 64, 3, 8, 8)


def slopes(quantized: bool, second: float) -> Any:
    """Three convolutions with a slope below zero behind each; the second slope is given."""
    package = openvino()
    from openvino import opset13 as ops

    def rounded(node: Any, reach: float, name: str) -> Any:
        return fake_quantize(node, -reach * 128 / 127, reach, name=f"{name}/fq") if quantized else node

    image = ops.parameter([-1, 3, 8, 8], np.float32, name="image")
    y = rounded(image, 5.0, "image")
    for k, slope in enumerate((0.1, second, 0.1)):
        values = random(10 + k, 8, 3 if k == 0 else 8, 3, 3, scale=0.2)
        weights = rounded_weights(values) if quantized else ops.constant(values)
        y = ops.prelu(ops.convolution(y, weights, [1, 1], [1, 1], [1, 1], [1, 1]), ops.constant(np.float32([slope])))
        y.set_friendly_name(f"slope{k}")
        y = rounded(y, 8.0, f"slope{k}")
    y = ops.reduce_mean(y, ops.constant(np.array([2, 3], np.int64)), keep_dims=False)
    return package.Model([ops.result(y)], [image], "slopes")


class Departing:
    """A session whose outputs are others, for what it shows."""

    def __init__(self, inner: Session) -> None:
        self._inner, self.list_kernels, self.call = inner, inner.list_kernels, inner.call

    def run(self, feed: Any) -> Any:
        outputs, shown = self._inner.run(feed)
        return [y * np.float32(1.5) for y in outputs], shown


def test_a_departure_is_found_among_the_tensors_that_are_shown_as_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one tensor could not be shown, nothing was looked for, and no cause was named."""
    original = Sessions.session

    def session(self: Sessions, graph: OpenVINOGraph, threads: int, exposed: Sequence[Place] = ()) -> Any:
        operators = graph.file.model.get_ordered_ops()
        found = original(self, graph, threads, exposed)
        shows = any(operators[place.operator].get_friendly_name() == "slope0/fq" for place in exposed)
        return Departing(found) if shows else found

    monkeypatch.setattr(Sessions, "session", session)
    paths = save_openvino_pair(tmp_path, slopes(False, 0.1), slopes(True, 0.6))
    found = quantmedic.diagnose(*paths, representative=X[:32], validation=X[32:], prove=False, threads=1)
    assert any("reading its tensors changes" in warning for warning in found.warnings)
    assert found.causes[0].cause == "operator-departs"
    assert found.loss_budget is not None and found.loss_budget.lines[0].places == ("slope1",)
