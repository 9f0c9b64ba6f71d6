"""Two models without data: what weights, graph, quantization parameters and options tell in seconds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import quantmedic
from quantmedic.api.diagnose import noted, toolchain_facts
from quantmedic.api.imports import read_sources, with_files
from quantmedic.api.opening import open_files
from quantmedic.api.weights import collect_weights
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.engine.case.records import Case
from quantmedic.engine.rules.rule import RuleBase


def collect_static(
    float_model: Any,
    quantized_model: Any,
    *,
    rules: RuleBase | None = None,
    threads: int | None = None,
    toolchain_logs: Sequence[str | Path] = (),
    core_config: Any = None,
    mct_log: str | Path | None = None,
    settings_files: Sequence[str | Path] = (),
    progress: Progress = no_progress,
) -> Case:
    """What two models tell without data: neither is run, and accuracy is not measured.

    Facts that rest on data stay None, and the rules that ask for them are not judged. The case is judged, saved and
    reported like any other; it has no samples, so that it cannot be merged.

    Args:
        float_model: Path of the float ONNX model, or of a ``.safetensors`` checkpoint or a folder of its shards.
        quantized_model: Path of its quantized counterpart, of the same kind.
        rules: Rules whose ``logs.yaml`` tells how toolchains word things; the built-in ones by default.
        threads: Processor threads; all cores by default.
        toolchain_logs: See ``collect``.
        core_config: See ``collect``.
        mct_log: See ``collect``; of several quantizations in the log the newest is taken.
        settings_files: See ``collect``.
        progress: Called with a stage, the parts done and their number where known.

    Raises:
        ModelError: A model cannot be read, the two do not belong together, or they are torch modules, which have to be
            run to be known.
        DataError: A log cannot be read, or it is no ``CoreConfig``.
    """
    from quantmedic.collectors.measure.collect import Extras
    from quantmedic.collectors.measure.static import collect

    sources = read_sources(settings_files)
    told = toolchain_facts(None, rules, toolchain_logs, core_config=core_config, mct_log=mct_log)
    if any(_is_checkpoint(model) for model in (float_model, quantized_model)):
        case = collect_weights(float_model, quantized_model, threads=threads, progress=progress)
    else:
        progress("static", 0, None)
        models = open_files(float_model, quantized_model)
        case = collect(models, version=quantmedic.__version__, threads=threads)
    extras = Extras(search=told.search, settings=told.settings)
    case = with_files(replace(case, record=extras.added_to(case.record)), sources)
    return case if told.notice is None else noted(case, told.notice)


def _is_checkpoint(model: Any) -> bool:
    """A ``.safetensors`` file, or a folder."""
    return isinstance(model, str | Path) and (Path(model).suffix == ".safetensors" or Path(model).is_dir())
