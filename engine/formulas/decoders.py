"""What decodes the boxes and scores of a detector, and how much of the noise quantizing that makes."""

from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.tensor_facts import SourceFacts
from quantmedic.engine.formulas.sources import MOVING

#: What a joint rounds on one grid is told by the rules about joints (G001, G002); what is moved was rounded before.
_LEFT_OUT = MOVING | {"Concat"}


def layers_with_decoders(layers: tuple[LayerFacts, ...], case: Case) -> tuple[LayerFacts, ...]:
    """The layers; those that decode the head of a detector know how much of the noise all of them make.

    What joins boxes and scores knows the others.
    """
    found = {layer.float_name: k for k, layer in enumerate(layers) if layer.float_name}
    changed = list(layers)
    for output in case.record.outputs:
        places = sorted({found[name] for name in output.decoder if name in found})
        computing = [layers[k].output.source for k in places if layers[k].op_type not in _LEFT_OUT]
        shares = [source.share for source in computing if source.share is not None and not _has_wrong_range(source)]
        names = [name for k in places if (name := layers[k].name)]
        for k in places:
            changed[k] = layers[k].model_copy(update=_decoder_facts(layers[k], names, shares))
    return tuple(changed)


def _has_wrong_range(source: SourceFacts) -> bool:
    """Another range takes the noise away, so that 8 bits are enough: the rules about ranges tell of it."""
    return bool(source.mended_by_best_range or source.mended_by_full_range)


def _decoder_facts(layer: LayerFacts, names: list[str], shares: list[float]) -> dict[str, object]:
    share = min(sum(shares), 1.0) if shares else None
    if layer.op_type != "Concat":
        return {"decoder_share": share}
    others = tuple(name for name in names if name != layer.name)
    return {"decoder_share": share, "decoder": others, "decoder_layers": len(others) or None}
