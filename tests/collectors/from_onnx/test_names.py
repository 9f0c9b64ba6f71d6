"""Names for the options of toolchains, resolved against the float graph; bias codes of other weight scales."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from builders import onnx_models

from quantmedic import collect, load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.formulas.derive import derive

FEED = {"image": onnx_models.images()}


def facts_of(model: onnx.ModelProto, folder: Path, **options: Any) -> CaseFacts:
    onnx.save(onnx_models.static(model, FEED, folder, **options), str(folder / "quantized.onnx"))
    return derive(collect(folder / "before.onnx", folder / "quantized.onnx", validation=FEED), load_rulebase())


def renamed_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes are called otherwise than their outputs."""
    for node in model.graph.node:
        node.name = f"/{node.output[0]}"
    return model


def nodes_of(facts: CaseFacts) -> dict[str, tuple[str, ...]]:
    return {layer.name: layer.float_nodes for layer in facts.layers}


@pytest.mark.thorough
def test_a_layer_stands_for_its_node_and_the_activation_fused_into_it(tmp_path: Path) -> None:
    """Readers are looked for behind operators that only move values."""
    facts = facts_of(renamed_nodes(onnx_models.conv_net()), tmp_path)
    nodes = nodes_of(facts)
    assert nodes["/conv1"] == ("/conv1", "/relu1")
    assert (nodes["/pool"], nodes["/scores"]) == (("/pool",), ("/scores",))
    readers = {tensor.float_name: tensor.readers for tensor in facts.tensors}
    assert (readers["image"], readers["relu1"]) == (("/conv1",), ("/conv2",))
    assert (readers["pool"], readers["scores"]) == (("/flat", "/scores"), ())
    kept = facts_of(renamed_nodes(onnx_models.conv_net()), tmp_path, extra_options={"ActivationSymmetric": True})
    assert (nodes_of(kept)["/conv1"], nodes_of(kept)["/relu1"]) == (("/conv1",), ("/relu1",))


def test_a_layer_whose_node_has_no_name_cannot_be_named(tmp_path: Path) -> None:
    model = onnx_models.conv_net()
    for node in model.graph.node:
        node.name = "" if node.op_type == "Conv" else f"/{node.output[0]}"
    facts = facts_of(model, tmp_path)
    nodes = nodes_of(facts)
    assert nodes["conv1"] == (), "its activation alone would not do"
    assert nodes["/pool"] == ("/pool",)
    readers = {tensor.float_name: tensor.readers for tensor in facts.tensors}
    assert readers["relu1"] == ()


@pytest.mark.thorough
def test_bias_codes_of_weights_per_channel_are_foreseen(tmp_path: Path) -> None:
    folders = [tmp_path / "tensor", tmp_path / "channel"]
    for folder in folders:
        folder.mkdir()
    now, then = (facts_of(onnx_models.conv_net(), folder, per_channel=i == 1) for i, folder in enumerate(folders))
    for layer in ("conv1", "conv2"):
        (foreseen,) = [one.bias.max_code_per_channel for one in now.layers if one.name == layer]
        (found,) = [one.bias for one in then.layers if one.name == layer]
        assert foreseen == pytest.approx(found.max_code, rel=1e-2)
        assert found.max_code_per_channel is None, "they are per channel already"
