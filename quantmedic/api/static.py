"""Two models without data: facts from weights, graph, quantization parameters and options, in seconds."""

from collections.abc import Sequence
from pathlib import Path

from quantmedic.api.imports import read_toolchain
from quantmedic.api.language_models import is_checkpoint_path
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import open_files
from quantmedic.api.options import ModelSource, ToolchainOptions
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS
from quantmedic.collectors.measure.static import case_of_files
from quantmedic.engine.case.records import STATIC, Case
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.version import VERSION


def collect_static(
    float_model: ModelSource,
    quantized_model: ModelSource,
    *,
    rules: RuleBase | None = None,
    threads: int | None = None,
    toolchain_logs: Sequence[str | Path] = (),
    core_config: object | None = None,
    mct_log: str | Path | None = None,
    settings_files: Sequence[str | Path] = (),
    progress: Watching = True,
) -> Case:
    """Facts of two models without data: neither is run, and accuracy is not measured.

    Facts that rest on data stay None, and the rules that ask for them are not judged. The case is judged, saved and
    reported like any other; it has no samples, so that it cannot be merged.

    Args:
        float_model: Path of the float ONNX model, or of a checkpoint: ``.safetensors``, ``.gguf``, a folder of shards.
        quantized_model: Path of its quantized counterpart, of the same kind.
        rules: Rules whose ``logs.yaml`` holds patterns of toolchain logs; the built-in ones by default.
        threads: Processor threads; all cores by default.
        toolchain_logs: See ``collect``.
        core_config: See ``collect``.
        mct_log: See ``collect``; of several quantizations in the log the newest is taken.
        settings_files: See ``collect``.
        progress: Called with a stage, the parts done and their number where known; see ``collect``.

    Raises:
        ModelError: A model cannot be read, the two do not belong together, or they are torch modules, which have to be
            run to be known.
        DataError: A log cannot be read, or ``core_config`` is not a ``CoreConfig``.
    """
    toolchain = ToolchainOptions(toolchain_logs, mct_log, settings_files, core_config)
    printed = read_toolchain(toolchain, rules or load_rulebase())
    paths = [Path(model) for model in (float_model, quantized_model) if isinstance(model, str | Path)]
    with watching(progress) as told:
        if len(paths) == 2 and any(map(is_checkpoint_path, paths)):
            checkpoints = extension_for(CHECKPOINTS, paths[1], str(paths[1]))
            found = checkpoints.compare(*paths, version=VERSION, threads=threads, progress=told)
            return printed.added_to(found.with_record(run={**found.record.run, "mode": STATIC}))
        told("static", 0, None)
        models = open_files(float_model, quantized_model)
        return printed.added_to(case_of_files(models, threads), models)
