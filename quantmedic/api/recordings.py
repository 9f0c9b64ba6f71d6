"""Recording what a quantized model computes on this installation, to be compared with another one."""

from pathlib import Path

from quantmedic.api.opening import measuring_options, open_pair, with_time_limit
from quantmedic.api.options import CollectOptions, ModelSource
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.recordings import Recording, record_outputs
from quantmedic.engine.errors import DataError


@with_time_limit
def record_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    output: Path,
    *,
    progress: Progress = no_progress,
) -> Recording:
    """Write the outputs of the quantized model on the validation data, with what tells of this installation.

    Raises:
        DataError: There are no validation data, or they do not fit.
        ModelError: A model cannot be read or run, or the two do not belong together.
        OutputError: The file cannot be written.
    """
    if options.validation is None:
        raise DataError("outputs of what are to be recorded?", help="pass the samples with --validation")
    models, datasets = open_pair(
        float_model, quantized_model, {"validation": options.validation}, preprocessing=options.preprocessing
    )
    if options.device is not None:
        models.run_on(options.device)
    with models.as_deployed():
        return record_outputs(Measurement(models, datasets, measuring_options(options), progress=progress), output)
