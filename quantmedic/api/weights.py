"""Checkpoints: a float one against a quantized one, tensor by tensor, and the language models in them on texts."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from quantmedic.api.answer import Diagnosis
from quantmedic.api.judging import judge
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.options import TokenSource
from quantmedic.api.report import FORMATS, write_report
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.extensions import extension_for
from quantmedic.collectors.measure.checkpoints import CHECKPOINTS, Checkpoints
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.version import VERSION


def compare_weights(
    float_weights: str | Path,
    quantized_weights: str | Path,
    *,
    rules: RuleBase | None = None,
    output: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
    threads: int | None = None,
    cluster: object | None = None,
    tokens: TokenSource | None = None,
    text_length: int | None = None,
    device: str | None = None,
    progress: Watching = True,
) -> Diagnosis:
    """Find out what quantization did to the weights of a model that need not fit into memory.

    Both arguments are a ``.safetensors`` file, a folder with one or several of them, or a ``.gguf`` file. The quantized
    weights may be packed by GPTQ, AWQ or compressed-tensors, plain int8 or float8 with scales (compressed-tensors,
    bitsandbytes, torchao), small floats (NVFP4, MXFP4, MXFP6, MXFP8, NF4), real numbers that were rounded, or blocks of
    llama.cpp. Whether an error of the weights does harm cannot be told from weights: rules that need it are not judged,
    unless ``tokens`` are given: then both language models are run on them.

    Args:
        float_weights: The weights before quantization.
        quantized_weights: The weights after it.
        rules: Rules and thresholds; the built-in ones by default.
        output: Folder for the report; None writes nothing.
        formats: What to write there: html, markdown, json, png, model-explorer, metrics.
        threads: Processor threads; all cores up to 8 by default. Each takes about 20 MB.
        cluster: Workers that compare tensors; see ``collect``.
        tokens: Texts that both models are run on, block by block: a file of texts or token ids, an array of ids
            ``[texts, tokens]``, or a list with one array per text.
        text_length: Tokens that are used of each text; 512 by default.
        device: Where both models are run on ``tokens``, such as ``cuda``; the processor by default.
        progress: Called with "weights", tensors done and tensors in all; with ``tokens`` also with "blocks";
            see ``collect``.

    Returns:
        The diagnosis; ``layers`` in it are the weights of linear layers and embeddings.

    Raises:
        QuantmedicError: A checkpoint cannot be read, they do not belong together, or the report cannot be written.
    """
    base = rules or load_rulebase()
    case = collect_weights(
        float_weights,
        quantized_weights,
        threads=threads,
        cluster=cluster,
        tokens=tokens,
        text_length=text_length,
        device=device,
        progress=progress,
    )
    diagnosis = judge(case, base)
    if output is not None:
        write_report(diagnosis, output, formats=formats, rules=base, case=case)
    return diagnosis


def collect_weights(
    float_weights: str | Path,
    quantized_weights: str | Path,
    *,
    threads: int | None = None,
    cluster: object | None = None,
    tokens: TokenSource | None = None,
    text_length: int | None = None,
    device: str | None = None,
    progress: Watching = True,
) -> Case:
    """The measurements of ``compare_weights`` as a case, to be judged or saved.

    Raises:
        QuantmedicError: A checkpoint cannot be read, they do not belong together, or the models cannot be run.
    """
    paths = Path(float_weights), Path(quantized_weights)
    checkpoints = extension_for(CHECKPOINTS, paths[1], str(paths[1]))
    _look_for_device(device, tokens, checkpoints)
    with watching(progress) as told:
        case = _compare(checkpoints, paths, threads, cluster, told)
        if tokens is None:
            return case
        return checkpoints.run_on_texts(
            case,
            paths,
            tokens,
            length=text_length,
            threads=threads,
            device=device,
            progress=told,
        )


def _look_for_device(device: str | None, tokens: TokenSource | None, checkpoints: Checkpoints) -> None:
    """Weights are compared before, which takes minutes: what is not there is told first."""
    if device is None:
        return
    if tokens is None:
        raise DataError(
            "weights are compared by the processor; a device runs language models",
            where=f"--device {device}",
            help="give the texts that both are run on (--tokens), or leave --device out",
        )
    checkpoints.require_device(device)


def _compare(
    checkpoints: Checkpoints,
    paths: tuple[Path, Path],
    threads: int | None,
    cluster: object | None,
    progress: Progress,
) -> Case:
    if cluster is None:
        return checkpoints.compare(*paths, version=VERSION, threads=threads, progress=progress)
    from quantmedic.cluster.checkpoints import compare_on_cluster  # Dask is an optional package

    elsewhere = partial(compare_on_cluster, *paths, cluster, threads)
    return checkpoints.compare(*paths, version=VERSION, threads=threads, progress=progress, elsewhere=elsewhere)
