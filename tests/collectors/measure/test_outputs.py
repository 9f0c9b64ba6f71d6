"""Outputs whose declared shape is not that of the values."""

from pathlib import Path

from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic


def test_an_output_that_declares_more_dimensions_than_it_has_is_compared_as_a_whole(tmp_path: Path) -> None:
    net = conv_net()
    quantized = qdq(net, {"image": images()})
    net.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 5
    case = quantmedic.collect(*save_pair(tmp_path, net, quantized), validation=images(), threads=1)
    assert "output.0" in case.statistics["validation"].comparisons
    assert "column.0" not in case.statistics["validation"].comparisons
