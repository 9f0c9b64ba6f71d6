"""What if the model were quantized otherwise: variants of one float model, measured against it on the same samples."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import Opened, open_evaluation
from quantmedic.api.options import DataOptions, DataSource, MeasuringOptions, ModelSource
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.reports.terminal.what_if import render_what_if
from quantmedic.trials.split import read_pool
from quantmedic.trials.variants import KIND, Variants

#: Samples that every variant is judged on, unless the user wants more.
SAMPLES = 256


@dataclass(frozen=True)
class WhatIf:
    """What each variant recovers over the first one; printed, a table.

    Attributes:
        rows: One for each variant, in their order. The first one recovers nothing over itself.
    """

    rows: tuple[TrialRecord, ...]

    def __str__(self) -> str:
        """A table with one line for each variant."""
        return render_what_if(self.rows)


def what_if(
    float_model: ModelSource,
    variants: Mapping[str, Callable[[], ModelSource]],
    *,
    validation: DataSource | None = None,
    representative: DataSource | None = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    metric_direction: str | None = None,
    metric_output: str | None = None,
    metric_options: Mapping[str, str] | None = None,
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    progress: Watching = True,
) -> WhatIf:
    """Quantize a model in several ways, and measure what each recovers at the output over the first one.

    Args:
        float_model: See ``diagnose``.
        variants: Functions without arguments that return the quantized model, by name; models may stand in their
            place. The first is what the others are compared with. One that raises an error is a row that says so.
        validation: The samples, as for ``diagnose``.
        representative: Calibration data, read where no evaluation data are given.
        labels: Their labels, where they are not part of the data.
        metric: A built-in metric such as top1, map, miou or cer (page ``metrics``), or ``module:function``; top1 where
            labels are classes, map where they are boxes of a detector.
        metric_direction: ``higher`` or ``lower`` is better, for a function without ``higher_is_better``.
        metric_output: Output that a built-in metric reads, for boxes their names separated by commas.
        metric_options: Options of a built-in metric, such as ``{"blank": "28"}`` of cer.
        preprocessing: ``Preprocessing`` of all data, or by role, for samples that are not yet what the network wants.
        samples: About so many samples at most.
        seed: Seed of the choice of samples and of bootstrapped intervals.
        progress: Called with ``variants``, those done and their number; see ``collect``.

    Raises:
        DataError: The data do not fit the model, or there are no data or no variants.
        ModelError: A model cannot be read, or does not belong to the float model.
    """
    if not variants:
        raise DataError("no variants were given", help="pass a dictionary: a function that quantizes, by its name")
    data = DataOptions(
        representative=representative,
        validation=validation,
        labels=labels,
        preprocessing=preprocessing_by_role(preprocessing),
        metric=metric,
        metric_direction=metric_direction,
        metric_output=metric_output,
        metric_options=metric_options or {},
    )
    rows: list[TrialRecord] = []
    with watching(progress) as told:
        told("variants", 0, len(variants))
        for row in _measure_variants(float_model, variants, data, samples, seed):
            rows.append(row)
            told("variants", len(rows), len(variants))
    return WhatIf(tuple(rows))


def _measure_variants(
    float_model: ModelSource,
    variants: Mapping[str, Callable[[], ModelSource]],
    data: DataOptions,
    samples: int,
    seed: int,
) -> Iterator[TrialRecord]:
    """The rows; the first variant has to be measured, for without it nothing can be compared."""
    judged: Variants | None = None
    for name, variant in variants.items():
        started = time.monotonic()
        try:
            opened = open_evaluation(float_model, _model_of(variant), data, MeasuringOptions(seed=seed))
            with opened.models.as_deployed():
                judged = judged or _judged_on(opened, samples, seed)
                row = judged.measure(name, opened.models, opened.case)
        except Exception as error:  # One variant that fails, for whatever reason, must not cost the others.
            if judged is None:
                raise
            row = TrialRecord(key=name, kind=KIND, failed=_in_words(error))
        yield row.model_copy(update={"seconds": time.monotonic() - started})


def _model_of(variant: object) -> ModelSource:
    """The model of a variant: modules can be called too, and are models."""
    return variant() if callable(variant) and not hasattr(variant, "named_modules") else variant


def _in_words(error: Exception) -> str:
    """Why a variant failed: in the words of whoever quantized it, the first line of them."""
    if isinstance(error, QuantmedicError):
        return ": ".join([error.message, *error.where[:2]])
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"


def _judged_on(opened: Opened, samples: int, seed: int) -> Variants:
    known = opened.dataset.samples
    batches = read_pool(opened.dataset, known or samples, None if known else samples, samples, seed)
    return Variants(batches, opened.metric, opened.threads, seed)
