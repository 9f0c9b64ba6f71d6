"""What decodes the boxes and scores of a detector, and how much of the noise quantizing that makes."""

from collections.abc import Collection

from quantmedic.engine.case.budget_record import LossBudget, SourceRecord
from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.formulas.noise_sources import is_mended, noisiest_output, simulated_share

#: A wrong range: 8 bits are enough for what another one mends, and the rules about ranges tell of it.
_RANGES = ("full-range", "best-range")


def decoder_fields(layers: tuple[LayerFacts, ...], case: Case) -> FieldsByPlace:
    """Of layers that decode the head of a detector, how much of the noise all of them make.

    What joins boxes and scores knows the others. What it rounds on its one grid, the rules about joints tell of (G001,
    G002).
    """
    found = {layer.float_name: k for k, layer in enumerate(layers) if layer.float_name}
    changed: dict[int, dict[str, object]] = {}
    for output in case.record.outputs:
        places = sorted({found[name] for name in output.decoder if name in found})
        made = {i for k in places for i in case.record.operators[k].outputs if i is not None}
        share = _share_of(case.record.loss_budget, made - set(output.carriers), places)
        names = [name for k in places if (name := layers[k].name)]
        for k in places:
            changed[k] = _decoder_facts(layers[k], names, share)
    return changed


def _share_of(budget: LossBudget | None, tensors: Collection[int], operators: Collection[int]) -> float | None:
    """Share of the noise at the noisiest output that quantizing these makes; None where nothing of them was measured.

    Of sources that no run took apart all must be among them.
    """
    if budget is None:
        return None
    noisiest = noisiest_output(budget)
    own = [
        piece.shares[noisiest]
        for piece in budget.pieces
        if all(_is_among(source, tensors, operators) for source in piece.sources)
        and not any(is_mended(piece, kind, noisiest) for kind in _RANGES)
    ]
    return min(sum(own) * simulated_share(budget, noisiest), 1.0) if own else None


def _is_among(source: SourceRecord, tensors: Collection[int], operators: Collection[int]) -> bool:
    if source.kind in ("weight", "bias"):
        return all(k in operators for k in source.operators)
    return all(i in tensors for i in source.tensors)


def _decoder_facts(layer: LayerFacts, names: list[str], share: float | None) -> dict[str, object]:
    if layer.op_type != "Concat":
        return {"decoder_share": share}
    others = tuple(name for name in names if name != layer.name)
    return {"decoder_share": share, "decoder": others, "decoder_layers": len(others) or None}
