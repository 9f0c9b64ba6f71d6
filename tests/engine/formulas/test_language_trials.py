"""What trials of language models say of single layers."""

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import ErrorFacts, LanguageFacts, LayerFacts, ModelFacts, WeightFacts
from quantmedic.engine.case.weight_facts import TensorRole
from quantmedic.engine.formulas.language import block_fields

LANGUAGE = LanguageFacts(
    texts=8, worst_block="model.layers.1", worst_block_gain=0.3, head_gain=0.1, embedding_gain=0.2, router_gain=0.8
)


def layer(name: str, role: TensorRole, mse: float | None = 1e-4) -> LayerFacts:
    return LayerFacts(name=name, float_name=name, weight=WeightFacts(role=role, rounding=ErrorFacts(mse=mse)))


def test_a_layer_has_the_gains_of_what_it_is_part_of() -> None:
    known: list[tuple[LayerFacts, float | None, float | None]] = [
        (layer("model.layers.1.mlp.gate", "router"), 0.3, 0.8),
        (layer("model.layers.10.mlp.gate", "router"), None, 0.8),
        (layer("model.layers.2.mlp.gate", "router", None), None, None),
        (layer("model.layers.1.mlp.experts.0.up_proj", "expert"), 0.3, None),
        (layer("model.layers.2.mlp.experts.0.up_proj", "expert"), None, None),
        (layer("lm_head", "lm_head"), None, 0.1),
        (layer("model.embed_tokens", "embedding"), None, 0.2),
    ]
    layers = tuple(own for own, _, _ in known)
    fields = block_fields(layers, ModelFacts(language=LANGUAGE), load_rulebase())
    found = [layer.model_copy(update=fields[place]) for place, layer in enumerate(layers)]
    assert [(each.block_gain, each.part_gain) for each in found] == [(block, part) for _, block, part in known]
    assert block_fields(layers, ModelFacts(), load_rulebase()) == {}, "without texts nothing is said"
