"""Facts of the tensors that the device computed: how each agrees with the model here, and where a departure begins."""

from collections.abc import Collection, Sequence

from quantmedic.engine.case.facts import DeviceTensorFacts, LayerFacts, TensorFacts
from quantmedic.engine.case.records import Case, DeviceTensorRecord
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.formulas.columns import FieldsByPlace
from quantmedic.engine.thresholds import Thresholds


def tensors_with_device(
    case: Case, tensors: tuple[TensorFacts, ...], thresholds: Thresholds
) -> tuple[TensorFacts, ...]:
    """The tensors with what the device computed of them, where its tensors were given."""
    if case.record.device is None:
        return tensors
    samples = case.record.device.samples
    compared = {record.tensor for record in case.record.device.tensors}
    found = {
        record.tensor: _device_tensor(
            record,
            tensors[record.tensor].quantizer.scale,
            samples,
            _layers_between(case, record.tensor, compared),
            thresholds,
        )
        for record in case.record.device.tensors
    }
    return tuple(
        tensor.model_copy(update={"device": found[i]}) if i in found else tensor for i, tensor in enumerate(tensors)
    )


def _layers_between(case: Case, tensor: int, compared: Collection[int]) -> tuple[str, ...]:
    """Names of the layers that compute a tensor from others that were compared."""
    operators, writers = case.record.operators, case.record.writers()
    found: set[int] = set()
    left = [writers[tensor]] if tensor in writers else []
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            left += operators[place].sources
            unseen = (i for i in operators[place].inputs if i is not None and i not in compared)
            left += (writers[i] for i in unseen if i in writers)
    return tuple(operators[place].name for place in sorted(found))


def departure_fields(layers: tuple[LayerFacts, ...], case: Case) -> FieldsByPlace:
    """Whether a departure of the device begins at a layer, where its tensors were given."""
    if case.record.device is None:
        return {}
    found: dict[int, dict[str, object]] = {}
    seen: set[int] = set()
    for place, (layer, op) in enumerate(zip(layers, case.record.operators, strict=True)):
        begins, index = layer.output.device.begins, next((i for i in op.outputs if i is not None), None)
        found[place] = {"device_departs": None if begins is None else begins and index not in seen}
        seen |= set() if index is None else {index}
    return found


def _device_tensor(
    record: DeviceTensorRecord, scale: float | None, samples: int, layers: tuple[str, ...], thresholds: Thresholds
) -> DeviceTensorFacts:
    own = None if record.own_nmse is None else sqnr_db(1.0, record.own_nmse)
    begins = None if own is None else own < thresholds.threshold("device_begins_sqnr_db")
    if record.own_steps is not None:
        begins = begins and record.own_steps > thresholds.threshold("device_begins_steps")
    return DeviceTensorFacts(
        samples=samples,
        sqnr_db=sqnr_db(1.0, record.nmse),
        own_sqnr_db=own,
        own_steps=record.own_steps,
        factor=record.factor,
        factor_sqnr_db=None if record.factor_nmse is None else sqnr_db(1.0, record.factor_nmse),
        taken_scale=scale / record.factor if scale and record.factor else None,
        layers=layers,
        begins=begins,
    )


def departing_facts(case: Case, layers: Sequence[LayerFacts]) -> dict[str, object]:
    """Fields of ``DeviceFacts`` that tell of the device's tensors as a whole; none where there are none."""
    if case.record.device is None:
        return {}
    departing = sum(layer.device_departs is True for layer in layers)
    return {"tensors": len(case.record.device.tensors), "departing_layers": departing}
