"""Opening two models with the data that they are judged on, as every command does it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import quantmedic
from quantmedic.engine.errors import DataError
from quantmedic.engine.facts import Role

if TYPE_CHECKING:
    from quantmedic.collectors.datasets import Dataset
    from quantmedic.collectors.metrics import Metric
    from quantmedic.collectors.onnx_pair import Models
    from quantmedic.engine.case import Case

#: Samples from which is told what can be quantized.
LOOKED_AT = 16


@dataclass(frozen=True)
class Opened:
    """Two models, the validation data, and a case of a few of its samples."""

    models: "Models"
    dataset: "Dataset"
    metric: "Metric | None"
    case: "Case"
    threads: int


def open_validation(
    float_model: str | Path,
    quantized_model: str | Path,
    validation: Any,
    *,
    labels: str | Path | None,
    metric: str | None,
    metric_direction: str | None,
    metric_output: str | None,
    preprocessing: Mapping[Role, Any] | None,
    threads: int | None,
    seed: int,
) -> Opened:
    """Open what ``sensitivity`` and ``fallback`` need; see there.

    Raises:
        DataError: The data do not fit the model, or none were given.
        ModelError: A model cannot be read, or the two do not belong together.
    """
    from quantmedic.collectors.datasets import open_dataset
    from quantmedic.collectors.from_onnx import collect
    from quantmedic.collectors.host import available_threads
    from quantmedic.collectors.metrics import load_metric
    from quantmedic.collectors.onnx_observer import Options
    from quantmedic.collectors.onnx_pair import open_models
    from quantmedic.collectors.preprocessing import Preprocessing

    if validation is None:
        raise DataError("no data was given", help="pass the evaluation data with --validation")
    models = open_models(Path(float_model), Path(quantized_model))
    prepare = (preprocessing or {}).get("validation", Preprocessing())
    dataset = open_dataset(validation, models.input_specs, preprocessing=prepare, labels=labels, role="validation")
    name = metric or default_metric([dataset])
    measure = load_metric(name, metric_direction, output=metric_output) if name else None
    used = threads or available_threads()
    looked = Options(samples=max(LOOKED_AT, dataset.unit), threads=used, seed=seed)
    case = collect(models, {"validation": dataset}, options=looked, version=quantmedic.__version__, metric=measure)
    return Opened(models, dataset, measure, case, used)


def default_metric(datasets: Iterable[Any]) -> str | None:
    """top1 where the labels are class numbers; labels of other kinds need a metric that the user names."""
    for dataset in datasets:
        if dataset.labelled:
            labels = next(dataset.batches(1)).labels
            return "top1" if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu" else None
    return None
