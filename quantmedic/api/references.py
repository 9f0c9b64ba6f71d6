"""What was computed elsewhere for the same data, opened: outputs, tensors of a device, stages, an expected metric."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from quantmedic.api.cases import with_notice
from quantmedic.api.options import CollectOptions, ReferenceOptions
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.device_tensors import DEVICE_TENSORS, DUMP_OPTION, NAMES_OPTION, CompareDump
from quantmedic.collectors.measure.given_outputs import References
from quantmedic.collectors.measure.measurement import Extras, Measurement
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.outputs import OPTIONS
from quantmedic.collectors.measure.stages import open_stages
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.metrics.kinds import is_share


def open_references(
    models: Models,
    datasets: Mapping[Role, Dataset],
    options: CollectOptions,
    metric: Metric | None,
) -> Extras:
    """What was computed elsewhere: stages and outputs, opened, and the metric that is expected."""
    outputs = _open_outputs(models, datasets, options)
    name = metric.name if metric is not None else None
    given = options.stages
    stages = list(given.items() if isinstance(given, Mapping) else given)
    return Extras(
        outputs,
        stages=open_stages(stages, models, lambda path: front_end_of(path).open_network(path)) if stages else (),
        expected_float_metric=_expected_metric("float", options.expected_float_metric, name, datasets.values()),
        expected_quantized_metric=_expected_metric(
            "quantized", options.expected_quantized_metric, name, datasets.values()
        ),
        device=options.device,
    )


def _open_outputs(models: Models, datasets: Mapping[Role, Dataset], options: CollectOptions) -> dict[str, References]:
    """Outputs that were computed elsewhere, opened."""
    sources = {"reference": options.reference_outputs, "device": options.device_outputs}
    given = {kind: source for kind, source in sources.items() if source is not None}
    validation = datasets.get("validation")
    if not given:
        return {}
    if validation is None:
        raise DataError(
            "outputs were given without the inputs that they belong to",
            where=", ".join(OPTIONS[kind] for kind in given),
            help="pass these inputs with --validation",
        )
    return {kind: References(s, kind, models, validation.samples, options.samples) for kind, s in given.items()}


def open_device_tensors(measurement: Measurement, references: ReferenceOptions) -> CompareDump | None:
    """Tensors of the device, found in the quantized model; None where none were given."""
    if references.device_tensors is None:
        if references.device_names is not None:
            raise DataError(
                "names of tensors were given without the tensors",
                where=NAMES_OPTION,
                help=f"pass the tensors with {DUMP_OPTION}",
            )
        return None
    if "validation" not in measurement.datasets:
        raise DataError(
            "tensors of the device were given without the inputs that they belong to",
            where=DUMP_OPTION,
            help="pass these inputs with --validation",
        )
    device = extension_for(DEVICE_TENSORS, references.device_tensors, DUMP_OPTION)
    return device.open(references.device_tensors, references.device_names, measurement.models)


def with_device_tensors(case: Case, measurement: Measurement, compare: CompareDump) -> Case:
    """The case with what the device computes otherwise than the quantized model here."""
    options = measurement.options
    record, notices = compare(
        measurement.models,
        case,
        measurement.datasets["validation"],
        limit=options.samples,
        threads=options.threads,
    )
    return with_notice(replace(case, record=case.record.model_copy(update={"device": record})), *notices)


def _expected_metric(
    model: Literal["float", "quantized"], value: float | None, metric: str | None, datasets: Iterable[Dataset]
) -> float | None:
    """The metric that the user expects of a model, shares as a share."""
    if value is None:
        return None
    where = f"--expected-{model}-metric {value:g}"
    if metric is None or not any(dataset.labelled for dataset in datasets):
        raise DataError(
            f"the expected {model} metric cannot be compared: none is measured",
            where=where,
            help="pass --labels (or labels in the .npz of --validation) and --metric",
        )
    share = value / 100 if is_share(metric) and value > 1 else value
    if not math.isfinite(value) or (is_share(metric) and not 0 <= share <= 1):
        raise DataError(
            f"the expected {model} metric is not a valid {metric}",
            where=where,
            help="give a share such as 0.76, or percent such as 76.1",
        )
    return share
