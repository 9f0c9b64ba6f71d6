"""Which tensors are exposed together when only a part of them is exposed at a time."""

from quantmedic.collectors.measure.plan import Plan
from quantmedic.collectors.pair.tensor_pairs import observable_tensor
from quantmedic.engine.case.statistics import EXTREME_SAMPLES

#: More parts gain little, for the sessions of each have to be built.
MAX_PARTS = 8


def parts_of(samples: int, unit: int = 1) -> int:
    """Into how many parts tensors and samples are divided, of a data set of this size; 1 is all at once.

    Args:
        samples: Samples of the data set.
        unit: Samples that stay together, for the model takes so many at a time.
    """
    units_needed = -(-EXTREME_SAMPLES // unit)
    return max(1, min(MAX_PARTS, samples // unit // units_needed))


def rotation(plan: Plan, count: int) -> list[list[int]]:
    """Tensors of each part, about equally many elements in all of them.

    Neighbouring operators stay together and an operator's inputs are in the part of its output, so that both are
    measured on the same samples. Network inputs and outputs are in every part.
    """
    graph = plan.models.quantized
    index = {pair.root: i for i, pair in enumerate(plan.pairs)}
    needed = [
        ([index[observable_tensor(n, graph)] for n in op.outputs if observable_tensor(n, graph) in index],
         [index[n] for n in op.inputs if n in index])
        for op in graph.operators
    ]  # fmt: skip
    parts: list[set[int]] = [set(plan.always) for _ in range(count)]
    written = {i for outputs, _ in needed for i in outputs}
    total, passed = sum(plan.elements[i] for i in written), 0
    for outputs, inputs in needed:
        part = min(passed * count // max(total, 1), count - 1)
        parts[part].update(outputs, inputs)
        passed += sum(plan.elements[i] for i in outputs)
    return [sorted(part) for part in parts]
