"""Language models in the commands that measure a pair: which pairs they are, which options they take, their case.

Their blocks are run one after the other on texts, so that the interface of front ends, which observe whole networks on
batches, does not fit them: ``collect_pair`` leads here instead.
"""

from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path

from quantmedic.api.cases import case_path, work_folder
from quantmedic.api.imports import read_toolchain
from quantmedic.api.options import CollectOptions, ModelSource, TextOptions, declared_options
from quantmedic.api.rulebase import load_rulebase
from quantmedic.cluster.searches import compare_on_cluster
from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.extensions import extension_for, is_recognized
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS, Checkpoints, TextRun
from quantmedic.collectors.tensorflow_files import tensorflow_kind
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.output_files import require_file
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.version import VERSION

#: Values of ``prove`` that nobody asks for.
_UNASKED = (False, "first")


def is_language_pair(float_model: ModelSource, quantized_model: ModelSource) -> bool:
    """One of the two is a checkpoint and the other no file of another kind."""
    paths = [Path(model) for model in (float_model, quantized_model) if isinstance(model, str | Path)]
    if len(paths) < 2 or any(path.is_file() and not _is_recognized(path) for path in paths):
        return False
    return any(map(is_checkpoint_path, paths))


def is_checkpoint_path(path: Path) -> bool:
    """A file or package of weights, or a folder that is no TensorFlow model."""
    return _is_recognized(path) and tensorflow_kind(path) is None


def _is_recognized(path: Path) -> bool:
    return any(is_recognized(each, path) for each in CHECKPOINTS)


def refuse_checkpoints(*models: ModelSource) -> None:
    """Refuse checkpoints where a repaired model is asked for: none is written of them.

    Raises:
        DataError: One of the models is a checkpoint.
    """
    found = [str(model) for model in models if isinstance(model, str | Path) and is_checkpoint_path(Path(model))]
    if found:
        raise DataError(
            "checkpoints are diagnosed, but not repaired here",
            where=found,
            help="language models are measured by trials of their parts, and their prescription is printed, not run: "
            "quantmedic diagnose FLOAT QUANT --tokens FILE writes prescription.py; run it with your toolchain, and "
            "compare both cases with quantmedic compare",
        )


def collect_language_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    *,
    rules: RuleBase | None = None,
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
) -> Case:
    """``collect_pair`` of language models: weights compared, then both models run on the texts.

    Raises:
        DataError: An option means nothing to language models, or there are no texts.
        QuantmedicError: A checkpoint cannot be read, they do not belong together, or the models cannot be run.
    """
    _refuse_others(options)
    if options.weights_only == (options.tokens is not None):
        raise DataError(
            "checkpoints are run on texts, or their weights are compared",
            where="neither was asked for" if options.tokens is None else "both were asked for",
            help="pass texts with --tokens, or compare the weights alone with --weights-only",
        )
    if options.checkpoint is not None:
        require_file(case_path(options.checkpoint))
    printed = read_toolchain(options, rules or load_rulebase())
    paths = Path(str(float_model)), Path(str(quantized_model))
    checkpoints = extension_for(CHECKPOINTS, paths[1], str(paths[1]))
    _look_for_device(options, checkpoints)
    elsewhere = None
    if options.cluster is not None:
        elsewhere = partial(compare_on_cluster, *paths, options.cluster, options.threads)
    case = checkpoints.compare(*paths, version=VERSION, threads=options.threads, progress=progress, elsewhere=elsewhere)
    if options.tokens is not None:
        unfinished = None if options.checkpoint is None else work_folder(case_path(options.checkpoint))
        how = TextRun(
            options.tokens, options.text_length, options.threads, options.device, unfinished, progress, announce
        )
        case = checkpoints.run_on_texts(case, paths, how)
    return printed.added_to(case)


def _look_for_device(options: CollectOptions, checkpoints: Checkpoints) -> None:
    """Weights are compared before, which takes minutes: what is not there is told first."""
    if options.device is None:
        return
    if options.tokens is None:
        raise DataError(
            "weights are compared by the processor; a device runs language models",
            where=f"--device {options.device}",
            help="give the texts that both are run on (--tokens), or leave --device out",
        )
    checkpoints.require_device(options.device)


def refuse_texts(float_model: ModelSource, quantized_model: ModelSource, options: CollectOptions) -> None:
    """Refuse texts for models that are no language models of these kinds.

    Raises:
        DataError: There are some.
    """
    own = declared_options(TextOptions)
    given = [own[name].typed_as(name)[0] for name in _given_options(options) if name in own]
    if given:
        raise DataError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for language models",
            where=[_name_or_missing(model) for model in (float_model, quantized_model)],
            help="give two folders of checkpoints, .safetensors or .gguf files (modules: as save_pretrained writes "
            "them); other models are run on data that --representative and --validation name",
        )


def _name_or_missing(model: ModelSource) -> str:
    if not isinstance(model, str | Path):
        return f"{type(model).__name__} in memory"
    return str(model) if Path(str(model)).exists() else f"{model}: no such file or folder"


def _refuse_others(options: CollectOptions) -> None:
    """Refuse options that mean nothing to language models, and say what stands in their place."""
    given = set(_given_options(options))
    refused = {name: own for name, own in declared_options(CollectOptions).items() if own.instead and name in given}
    instead = {own.typed_as(name)[0]: own.instead for name, own in refused.items()}
    if instead:
        raise DataError(
            f"language models do not take {', '.join(instead)}",
            where=[f"{flag}: {why}" for flag, why in instead.items()],
            help="leave them out" if len(instead) > 1 else "leave it out",
        )


def _given_options(options: CollectOptions) -> Iterator[str]:
    """Names of the options that are not as they are by default; what a diagnosis tries unasked does not count."""
    usual = CollectOptions()
    for each in fields(usual):
        value, own = getattr(options, each.name), getattr(usual, each.name)
        # An empty list is as good as an empty tuple.
        differs = value is not None if own is None else value != own and bool(value or own)
        if differs and not (each.name == "prove" and value in _UNASKED):
            yield each.name
