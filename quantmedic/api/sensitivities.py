"""Sensitivity, layer by layer: the part of the public API that measures it, keeps it and writes it."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from quantmedic.api.limits import with_time_limit
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import open_evaluation
from quantmedic.api.options import (
    CheckpointOptions,
    DataOptions,
    DataSource,
    MeasuringOptions,
    ModelSource,
)
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.facts import Role
from quantmedic.engine.diagnosis.sensitivity import MODES, Mode, Outcome, SensitivityRecord, resume_sensitivity
from quantmedic.engine.errors import CaseError, DataError
from quantmedic.engine.json_text import read_json
from quantmedic.engine.output_files import require_file
from quantmedic.reports.files import sensitivity_files
from quantmedic.reports.machines.records import sensitivity_json
from quantmedic.reports.write import place
from quantmedic.trials.sensitivity import Experiment

#: Samples that every run reads unless the user wants more: enough to rank layers by noise, few enough to wait for.
SAMPLES = 64
#: Samples per run; part of the result, since sums are rounded.
BATCH_SIZE = 16
#: Seconds between two checkpoints.
CHECKPOINT_SECONDS = 5.0


class SensitivityInterrupted(KeyboardInterrupt):
    """Ctrl-C: ``record`` holds the runs that were made until then."""

    def __init__(self, record: SensitivityRecord) -> None:
        super().__init__()
        self.record = record


def sensitivity(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    validation: DataSource | None = None,
    representative: DataSource | None = None,
    labels: str | Path | None = None,
    metric: str | None = None,
    metric_direction: str | None = None,
    metric_output: str | None = None,
    metric_options: Mapping[str, str] | None = None,
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None = None,
    modes: Sequence[Mode] = MODES,
    samples: int | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    device: str | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    cluster: object | None = None,
    progress: Watching = True,
) -> SensitivityRecord:
    """Measure how sensitive the output is to each layer, by turning simulated quantizers on and off.

    Args:
        float_model: Path of the float ONNX model, or the float ``torch.nn.Module``.
        quantized_model: Path of its quantized counterpart, or that module.
        validation: The samples: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data, read where no evaluation data are given.
        labels: Their labels, where they are not part of the data.
        metric: A built-in metric such as top1, map, miou or cer (page ``metrics``), or ``module:function``; top1 where
            labels are classes, map where they are boxes of a detector.
        metric_direction: ``higher`` or ``lower`` is better, for a function without ``higher_is_better``.
        metric_output: Output that a built-in metric reads, for boxes their names separated by commas; the first, or
            those that look like boxes, scores and classes, by default.
        metric_options: Options of a built-in metric, such as ``{"blank": "28"}`` of cer.
        preprocessing: ``Preprocessing`` of all data, or by role, for samples that are not yet what the network wants.
        modes: Which runs: ``one`` layer quantized, ``all-but-one``, ``cumulative`` from the input.
        samples: At most this many samples, 64 by default, from all over the data set where its length is known.
        batch_size: Samples per run, 16 by default.
        threads: Processor threads to use; all cores by default.
        timeout: Seconds that one run of a model may take; see ``collect``.
        device: Where both models run; see ``collect``.
        seed: Seed of the choice of samples and of bootstrapped intervals.
        checkpoint: File that the record is written to every few seconds and on Ctrl-C.
        resume: Continue from the record in ``checkpoint``, if there is one: what it lacks is measured.
        cluster: Workers that make the runs; see ``collect``.
        progress: Called with the mode, the runs done and their number; see ``collect``.

    Returns:
        One run per layer and mode, with all that table and graph show.

    Raises:
        DataError: The data do not fit the model, or none were given.
        ModelError: A model cannot be read or simulated, no layer is quantized, or the two do not belong together.
        CaseError: The record to resume was begun with other models, data or options.
        OutputError: The checkpoint cannot be written.
        SensitivityInterrupted: Ctrl-C; its ``record`` is what was measured.
    """
    data = DataOptions(
        representative=representative,
        validation=validation,
        labels=labels,
        samples=samples,
        preprocessing=preprocessing_by_role(preprocessing),
        metric=metric,
        metric_direction=metric_direction,
        metric_output=metric_output,
        metric_options=metric_options or {},
    )
    measuring = MeasuringOptions(batch_size=batch_size, threads=threads, device=device, seed=seed, timeout=timeout)
    saving = CheckpointOptions(checkpoint, resume)
    with watching(progress) as told:
        return measure_sensitivity(
            float_model, quantized_model, data, measuring, saving, cluster, modes=modes, progress=told
        )


@with_time_limit
def measure_sensitivity(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    saving: CheckpointOptions,
    cluster: object | None = None,
    *,
    modes: Sequence[Mode] = MODES,
    progress: Progress = no_progress,
) -> SensitivityRecord:
    """``sensitivity`` with its options in groups; see there."""
    _check_modes(modes)
    if saving.checkpoint is not None:
        require_file(Path(saving.checkpoint))
    before = _unfinished_record(saving)
    experiment, models = open_experiment(float_model, quantized_model, data, measuring, modes)
    record = experiment.start if before is None else resume_sensitivity(before, experiment.start)
    if cluster is None:
        with models.as_deployed():
            own = ((mode, unit, experiment.run(mode, unit)) for mode, unit in record.missing)
            return _add_runs(own, record, saving, progress)
    from quantmedic.cluster.experiments import run_on_cluster  # Dask is an optional package

    runs = run_on_cluster(float_model, quantized_model, data, measuring, cluster, record)
    return _add_runs(runs, record, saving, progress)


def open_experiment(
    float_model: ModelSource,
    quantized_model: ModelSource,
    data: DataOptions,
    measuring: MeasuringOptions,
    modes: Sequence[Mode],
) -> tuple[Experiment, Models]:
    """The simulated network with its samples, and both models."""
    opened = open_evaluation(float_model, quantized_model, data, measuring)
    with opened.models.as_deployed():
        experiment = Experiment(
            opened.models,
            opened.dataset,
            opened.case,
            modes=tuple(mode for mode in MODES if mode in modes),
            samples=data.samples or SAMPLES,
            batch_size=measuring.batch_size or BATCH_SIZE,
            threads=opened.threads,
            seed=measuring.seed,
            metric=opened.metric,
        )
    return experiment, opened.models


def _add_runs(
    runs: Iterable[tuple[Mode, int, Outcome]], record: SensitivityRecord, saving: CheckpointOptions, progress: Progress
) -> SensitivityRecord:
    """Add runs as they come, and keep the record in the checkpoint on the way."""
    last_save = time.monotonic()
    done = Counter(run.mode for run in record.runs)
    try:
        for mode, unit, outcome in runs:
            record = record.add_run(mode, unit, outcome)
            done[mode] += 1
            progress(mode, done[mode], len(record.units))
            if time.monotonic() - last_save > CHECKPOINT_SECONDS:
                _save_checkpoint(record, saving)
                last_save = time.monotonic()
    except KeyboardInterrupt:
        raise SensitivityInterrupted(record) from None
    finally:
        _save_checkpoint(record, saving)
    return record


def _unfinished_record(saving: CheckpointOptions) -> SensitivityRecord | None:
    """The record to continue, if there is one."""
    if not saving.resume or saving.checkpoint is None or not Path(saving.checkpoint).exists():
        return None
    return load_sensitivity(saving.checkpoint)


def load_sensitivity(path: str | Path) -> SensitivityRecord:
    """Open a stored record, whole or interrupted: table and graph can be made of it without models.

    Raises:
        CaseError: The file is missing, damaged, or of another version.
        LimitError: It is too large or too deep.
    """
    try:
        return SensitivityRecord.model_validate(read_json(path))
    except OSError as error:
        raise CaseError(
            "cannot read the sensitivity file",
            where=f"{path}: {error.strerror or error}",
            help="write one with: quantmedic sensitivity FLOAT QUANT",
        ) from error
    except ValidationError as error:
        raise CaseError(
            "not a readable sensitivity file",
            where=f"{path}: {error.errors()[0]['msg']}",
            help="start again without --resume",
        ) from error
    except ValueError as error:
        raise CaseError(
            "not a readable sensitivity file", where=f"{path}: {error}", help="start again without --resume"
        ) from error


def write_sensitivity(record: SensitivityRecord, folder: str | Path) -> list[tuple[Path, int]]:
    """Write ``sensitivity.json``, ``.csv``, ``.md`` and ``.svg``; returns path and bytes of each.

    Raises:
        OutputError: The folder cannot be written.
    """
    return [(file.path, file.size) for file in place(sensitivity_files(record), Path(folder))]


def _save_checkpoint(record: SensitivityRecord, saving: CheckpointOptions) -> None:
    if saving.checkpoint is not None:
        path = Path(saving.checkpoint)
        place({path.name: sensitivity_json(record).encode()}, path.parent)


def _check_modes(modes: Sequence[str]) -> None:
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise DataError(
            "mode is not known", where=f"modes {', '.join(map(repr, unknown))}", help=f"give any of {', '.join(MODES)}"
        )
