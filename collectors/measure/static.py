"""Two models as a case without data: what files, graphs, weights and quantization parameters tell by themselves.

Neither model is run. Whatever rests on data stays None, so that its rules are not judged.
"""

from collections.abc import Mapping

from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.measure.models import Kernel, Models
from quantmedic.collectors.measure.plan import Plan, foresee
from quantmedic.collectors.measure.record import record_models
from quantmedic.collectors.statistics.spatial import IMAGE_CHANNELS, is_image
from quantmedic.engine.case.records import STATIC, Case
from quantmedic.engine.errors import ModelError

NOTICE = "no data was given: neither model was run, and rules on accuracy, activations and data are not judged"


def case_of_files(models: Models, threads: int | None = None) -> Case:
    """What two models tell without data.

    Args:
        models: What ``open_models`` returned.
        threads: Processor threads; all cores by default.
    """
    plan = foresee(models)
    kernels, refused = _kernels(models, threads_to_use(threads))
    record, weights = record_models(plan, lambda: kernels, spatial=_is_spatial(plan), how={"mode": STATIC})
    notices = [NOTICE, *refused, *models.float_graph.notices, *models.quantized.notices]
    if plan.strangers:
        notices.append(f"{len(plan.strangers)} tensors differ in shape and are left out: {plan.strangers[0]}")
    return Case(record.model_copy(update={"notices": tuple(dict.fromkeys(notices))}), {}, weights)


def _is_spatial(plan: Plan) -> bool | None:
    """Samples are images; None where their size depends on the data."""
    if plan.image is None:
        return False
    name, axis = plan.image
    shape = next(spec.shape for spec in plan.models.input_specs if spec.name == name)
    if len(shape) != 4 or axis not in (1, 3) or shape[axis] not in IMAGE_CHANNELS:
        return False
    known = tuple(size for size in (1, *shape[1:]) if size is not None)
    return is_image(known, axis) if len(known) == len(shape) else None


def _kernels(models: Models, threads: int) -> tuple[Mapping[str, Kernel], list[str]]:
    """Which kernels compute, or a notice that the runtime refuses the model: weights are judged all the same."""
    try:
        return models.kernels(threads), []
    except ModelError as error:
        return {}, [f"which kernels compute is not known: {error.without_folder(models.quantized.path)}"]
