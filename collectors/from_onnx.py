"""Measure a float ONNX model and its quantized counterpart: one pass over each data set, memory independent of it."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.datasets import Dataset
from quantmedic.collectors.metrics import Metric
from quantmedic.collectors.onnx_graph import Graph
from quantmedic.collectors.onnx_observer import FLIP_SAMPLES, Observer, Options
from quantmedic.collectors.onnx_pair import Models
from quantmedic.collectors.onnx_record import model_record
from quantmedic.engine.case import (
    Case,
    DatasetRecord,
)
from quantmedic.engine.facts import Role

Array = NDArray[np.generic]
Progress = Callable[[str, int, int | None], None]


def collect(
    models: Models,
    datasets: Mapping[Role, Dataset],
    *,
    options: Options,
    version: str,
    metric: Metric | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Case:
    """Run both models over the data sets and return everything measured.

    Args:
        models: What ``open_models`` returned.
        datasets: At least one of the two roles.
        options: How to collect.
        version: Version of quantmedic, for the record.
        metric: Task metric for labelled sets; without one, labels are not used.
        progress: Called with a stage, the samples done and their number where known.

    Raises:
        DataError: A data set does not fit the model.
        ModelError: A model fails on the data.
    """
    first = next(iter(datasets.values())).batches(options.batch_size, limit=options.samples)
    observer = Observer(models, next(first), options, classes=_are_classes(models.float_graph, metric))
    del first
    statistics, records = {}, {}
    for role, dataset in datasets.items():
        accumulator = observer.accumulator(metric if dataset.labelled else None)
        done = 0
        for batch in dataset.batches(options.batch_size, limit=options.samples):
            observer.observe(batch, accumulator, flip=role == "representative" and done < FLIP_SAMPLES)
            done += accumulator.last
            progress(role, done, _total(dataset, options))
        statistics[role] = accumulator.finish()
        records[role] = DatasetRecord(origin=dataset.origin, labelled=dataset.labelled, seen=done)
    notices = [*observer.notices, *(notice for d in datasets.values() for notice in d.notices)]
    record = model_record(models, observer, options, version, metric, notices)
    return Case(record.model_copy(update={"datasets": records}), statistics)


def _are_classes(graph: Graph, metric: Metric | None) -> bool:
    """The first output holds class scores: a known number of them, and no metric that says otherwise."""
    if metric is not None and metric.name not in ("top1", "top5"):
        return False
    if not graph.outputs:
        return False
    shape = graph.model.graph.output[0].type.tensor_type.shape.dim
    return len(shape) >= 2 and any(d.dim_value > 1 for d in shape[1:])


def _total(dataset: Dataset, options: Options) -> int | None:
    if dataset.samples is None:
        return options.samples
    return min(dataset.samples, options.samples or dataset.samples)
