"""What trials of language models say of single layers."""

import pytest

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import ErrorFacts, LanguageFacts, LayerFacts, ModelFacts, WeightFacts
from quantmedic.engine.case.weight_facts import TensorRole
from quantmedic.engine.formulas.language import layers_with_blocks

LANGUAGE = LanguageFacts(
    texts=8, worst_block="model.layers.1", worst_block_gain=0.3, head_gain=0.1, embedding_gain=0.2, router_gain=0.8
)


def layer(name: str, role: TensorRole, mse: float | None = 1e-4) -> LayerFacts:
    return LayerFacts(name=name, float_name=name, weight=WeightFacts(role=role, rounding=ErrorFacts(mse=mse)))


@pytest.mark.parametrize(
    "own, block, part",
    [
        (layer("model.layers.1.mlp.gate", "router"), 0.3, 0.8),
        (layer("model.layers.10.mlp.gate", "router"), None, 0.8),
        (layer("model.layers.2.mlp.gate", "router", None), None, None),
        (layer("model.layers.1.mlp.experts.0.up_proj", "expert"), 0.3, None),
        (layer("model.layers.2.mlp.experts.0.up_proj", "expert"), None, None),
        (layer("lm_head", "lm_head"), None, 0.1),
        (layer("model.embed_tokens", "embedding"), None, 0.2),
    ],
)
def test_a_layer_has_the_gains_of_what_it_is_part_of(own: LayerFacts, block: float | None, part: float | None) -> None:
    (found,) = layers_with_blocks((own,), ModelFacts(language=LANGUAGE), load_rulebase())
    assert (found.block_gain, found.part_gain) == (block, part)


def test_without_texts_nothing_is_said() -> None:
    own = (layer("model.layers.1.mlp.gate", "router"),)
    assert layers_with_blocks(own, ModelFacts(), load_rulebase()) is own
