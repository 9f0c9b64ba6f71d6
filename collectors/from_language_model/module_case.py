"""The case of two language models of which one at least is a module in memory."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.from_checkpoint.checkpoint_record import WEIGHTS_ALONE
from quantmedic.collectors.from_checkpoint.compare_checkpoints import compare_opened
from quantmedic.collectors.from_checkpoint.containers import Opened
from quantmedic.collectors.from_language_model.language_facts import language_facts, perplexity_facts, worst_texts
from quantmedic.collectors.from_language_model.module_trials import try_float_parts
from quantmedic.collectors.from_language_model.module_weights import checkpoint_of_module
from quantmedic.collectors.from_language_model.modules import ModulePair, run_modules
from quantmedic.collectors.from_language_model.skeleton import load_module
from quantmedic.collectors.from_language_model.tokens import (
    LENGTH,
    Ids,
    TokenSource,
    longest_text,
    name_of_texts,
    read_texts,
)
from quantmedic.collectors.from_torch.devices import move_modules
from quantmedic.engine.case.facts import LanguageFacts, MetricFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.offline import offline
from quantmedic.engine.rules.remedies import TRANSFORMERS


@offline()
def collect_modules(
    floats: object,
    quantized: object,
    tokens: TokenSource,
    *,
    version: str,
    length: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    progress: Progress = no_progress,
) -> Case:
    """The case of language models of which one at least is a module in memory, run whole and as it is.

    Args:
        floats: The float module, or the folder of its checkpoint.
        quantized: The quantized module.
        tokens: Texts or token ids; text needs the folder of the float model.
        version: Version of quantmedic, for the record.
        length: Tokens that are used of each text; 512 by default.
        threads: Processor threads of torch.
        device: Where both are moved and stay, by its name in torch; by default they run where they are.
        progress: Called after every tensor and every text.

    Raises:
        QuantmedicError: The quantized model is no module, one cannot be run or moved, or the texts cannot be read.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    model = _module_of(quantized, "quantized")
    twin = floats if isinstance(floats, nn.Module) else load_module(Path(str(floats)))
    run: dict[str, object] = {"tokens": name_of_texts(tokens), "text_length": length or LENGTH}
    if device is not None:
        run["device"] = device
        move_modules((twin, model), device)
    vocabulary = _vocabulary_of(twin)
    tokenizer = Path(str(floats)) if not isinstance(floats, nn.Module) else None
    notes: list[str] = []
    length = min(length or LENGTH, longest_text(twin))
    texts = read_texts(tokens, tokenizer, vocabulary, length=length, note=notes.append)
    sides: list[Opened] = [(checkpoint_of_module(each), {}, {}) for each in (twin, model)]
    case = compare_opened(*sides, version=version, threads=threads, progress=progress)
    pair = ModulePair.of(twin, model)
    language, metric = _judge_modules(pair, texts, vocabulary, progress)
    language = language.model_copy(update=worst_texts(language.kl_by_text, texts, tokenizer))
    return _as_modules(case, pair, language, metric, run, notes)


def _judge_modules(
    pair: ModulePair, texts: Sequence[Ids], vocabulary: int, progress: Progress
) -> tuple[LanguageFacts, MetricFacts]:
    scores, noises = run_modules(pair, texts, progress)
    found = language_facts(scores, texts, vocabulary, noises)
    return try_float_parts(pair, texts, scores, found, noises.share_of_front), perplexity_facts(scores)


def _as_modules(
    case: Case,
    pair: ModulePair,
    language: LanguageFacts,
    metric: MetricFacts,
    run: Mapping[str, object],
    notes: Sequence[str],
) -> Case:
    """The case of the weights with what running both has shown; sizes in memory are those of no file."""
    record = case.record
    seen = "block by block" if pair.blocks else "without looking into them, for no list of blocks was found in both"
    how = (
        f"both modules were run as they are, fake quantizers and quantized kernels included, without a K/V cache and "
        f"{seen}: perplexity, divergence and same first token are those of the modules"
    )
    changed = {
        "framework": TRANSFORMERS,
        "toolchain_marks": _marks_of_module(pair.quantized),
        "language": language,
        "metric": metric,
        "bytes_float": None,
        "bytes_quantized": None,
        "size_ratio": None,
        "same_as_float": "no" if language.kl_mean else record.model.same_as_float,
    }
    moved = [f"both modules were moved to {run['device']}"] if run.get("device") not in (None, "cpu") else []
    notices = (how, *moved, *notes, *(notice for notice in record.notices if notice != WEIGHTS_ALONE))
    model = record.model.model_copy(update=changed)
    whole = {"model": model, "notices": notices, "run": {**record.run, **run}}
    return Case(record.model_copy(update=whole), case.statistics)


def _marks_of_module(model: nn.Module) -> tuple[str, ...]:
    """Packages, other than torch, whose classes hold weights."""
    packages = [type(value).__module__.partition(".")[0] for value in model.parameters()]
    return tuple(dict.fromkeys(f"class of {name}" for name in packages if name != "torch"))


def _module_of(model: object, which: str) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    raise ModelError(
        f"the {which} model is no module, but the other one is",
        where=str(model) if isinstance(model, str | Path) else type(model).__name__,
        help="give two modules, two folders, or the folder of the float model and the quantized module",
    )


def _vocabulary_of(model: nn.Module) -> int:
    """Tokens that the model knows: rows of its embedding."""
    find = getattr(model, "get_input_embeddings", None)
    rows = getattr(find() if find is not None else None, "num_embeddings", None)
    if isinstance(rows, int):
        return rows
    raise ModelError(
        "the float module is no language model of transformers",
        where=type(model).__name__,
        help="texts are for causal language models, such as AutoModelForCausalLM; other modules are run on data that "
        "--representative and --validation name",
    )
