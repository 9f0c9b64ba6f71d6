"""The smallest set of layers that must leave int8: the part of the public API that searches and checks it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantmedic.api.opening import open_validation
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.engine.case.facts import Role
from quantmedic.engine.diagnosis.fallback_record import FallbackRecord, Goal
from quantmedic.engine.errors import DataError

#: Metrics that are shares: their drop is given in points.
SHARES = ("top1", "top5")


def fallback(
    float_model: Any,
    quantized_model: Any,
    *,
    validation: Any = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    metric_direction: str | None = None,
    metric_output: str | None = None,
    preprocessing: Mapping[Role, Any] | None = None,
    max_drop: float | None = None,
    min_sqnr_db: float | None = None,
    samples: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> FallbackRecord:
    """Find a smallest set of layers that must leave int8 so that a goal is met.

    It is searched in the simulated network on one half of the samples, and checked on the other half with the quantized
    model itself, edited for real.

    Args:
        float_model: Path of the float ONNX model, or the float ``torch.nn.Module``.
        quantized_model: Path of its quantized counterpart, or that module.
        validation: The samples: ``.npz``, folder, ``module:function``, mapping or array.
        labels: Their labels, where they are not part of the data.
        metric: top1, top5, mae, rmse or ``module:function``; top1 where labels are class numbers.
        metric_direction: ``higher`` or ``lower`` is better, for a function that does not say so itself.
        metric_output: Output that a built-in metric reads; the first by default.
        preprocessing: ``Preprocessing`` by role, here ``validation``, for samples that are not yet what the network
            wants.
        max_drop: The metric may get worse by this against the float model: in points of a share (1.0 is 1 %), else in
            its own unit. Without labels, of the agreement with the float model's class.
        min_sqnr_db: Or: the least output SQNR in dB. Exactly one of the two goals is given.
        samples: Samples of one evaluation; 64 to 256 by the size of the network by default.
        threads: Processor threads to use; all cores by default.
        seed: Seed of the split, of the random sets and of bootstrapped intervals.
        progress: Called with ``evaluations``, their number so far, and None.

    Returns:
        The set with cost, check and search; after Ctrl-C the best set so far, ``interrupted`` and not checked.

    Raises:
        DataError: The data do not fit the model, none were given, or there is not exactly one goal.
        ModelError: A model cannot be read or simulated, no layer is quantized, or the two do not belong together.
    """
    from quantmedic.trials.fallback import FallbackTrial

    _check_goal(max_drop, min_sqnr_db)
    opened = open_validation(
        float_model,
        quantized_model,
        validation,
        labels=labels,
        metric=metric,
        metric_direction=metric_direction,
        metric_output=metric_output,
        preprocessing=preprocessing,
        threads=threads,
        seed=seed,
    )
    name = opened.metric.name if opened.metric is not None and opened.dataset.labelled else None
    with opened.models.as_deployed():
        trial = FallbackTrial(
            opened.models.editable(),
            opened.dataset,
            opened.case,
            _goal(max_drop, min_sqnr_db, name),
            metric=opened.metric,
            samples=samples,
            threads=opened.threads,
            seed=seed,
        )
        return trial.search(lambda found: progress("evaluations", found.evaluations, None))


def _check_goal(max_drop: float | None, min_sqnr_db: float | None) -> None:
    given = {"--max-drop": max_drop, "--min-sqnr": min_sqnr_db}
    where = ", ".join(f"{option} {value:g}" for option, value in given.items() if value is not None)
    example = "give --max-drop 1.0 (points of the metric) or --min-sqnr 30 (dB)"
    if (max_drop is None) == (min_sqnr_db is None):
        raise DataError("exactly one goal is needed", where=where or "none is given", help=example)
    if not all(math.isfinite(value) for value in given.values() if value is not None) or (max_drop or 0) < 0:
        raise DataError("no model can reach this goal", where=where, help=example)


def _goal(max_drop: float | None, min_sqnr_db: float | None, metric: str | None) -> Goal:
    if max_drop is None:
        assert min_sqnr_db is not None
        return Goal(kind="sqnr", limit=min_sqnr_db)
    # A metric that is not known is the agreement, which is a share too.
    is_share = metric is None or metric in SHARES
    return Goal(kind="drop", limit=max_drop / 100 if is_share else max_drop)
