"""What running both language models adds to the case of their checkpoints."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Announce, no_announcement
from quantmedic.collectors.from_checkpoint.checkpoint_record import WEIGHTS_ALONE
from quantmedic.collectors.from_checkpoint.containers import open_both
from quantmedic.collectors.from_checkpoint.weight_values import Opened, WeightValues, match_names
from quantmedic.collectors.from_language_model.bench import Bench, texts_of_trials, try_parts
from quantmedic.collectors.from_language_model.blocks import Run, run_blocks, states_behind_norm
from quantmedic.collectors.from_language_model.configuration import Held
from quantmedic.collectors.from_language_model.language_facts import language_facts, perplexity_facts, worst_texts
from quantmedic.collectors.from_language_model.network import Network
from quantmedic.collectors.from_language_model.rooms import Rooms, let_go
from quantmedic.collectors.from_language_model.routing import chosen_experts
from quantmedic.collectors.from_language_model.scheme_scales import (
    asked_simulation,
    misfit_inputs,
    misfit_scales,
)
from quantmedic.collectors.from_language_model.scores import Scores
from quantmedic.collectors.from_language_model.skeleton import Skeleton, build_skeleton
from quantmedic.collectors.from_language_model.tokens import (
    LENGTH,
    longest_text,
    name_of_texts,
    read_texts,
    spans_of,
)
from quantmedic.collectors.from_language_model.unfinished import open_work, plan_of
from quantmedic.collectors.from_torch.devices import PROCESSOR, enough_memory, exact_products, title_of, usable_device
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.case.facts import LanguageFacts, MetricFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.offline import offline

_HOW = "both models were run with weights as float32 numbers, those of the quantized one dequantized"
#: Tokens that are looked at in one go.
_AT_ONCE = 512


def with_language(case: Case, paths: tuple[Path, Path], how: TextRun) -> Case:
    """The case of two checkpoints with what both models predict of the texts; see ``run_language_models``."""
    record, notes = case.record, list[str]()
    language, metric = run_language_models(paths, how, release=record.quantmedic_version, note=notes.append)
    model = record.model.model_copy(update={"language": language, "metric": metric})
    notices = (
        _running_notice(language),
        *_device_notice(how.device),
        *notes,
        *(own for own in record.notices if own != WEIGHTS_ALONE),
    )
    run = {**record.run, "tokens": name_of_texts(how.tokens), "text_length": how.length or LENGTH}
    if how.device is not None:
        run["device"] = how.device
    return Case(record.model_copy(update={"model": model, "notices": notices, "run": run}), case.statistics)


def _device_notice(name: str | None) -> tuple[str, ...]:
    """On which device, unless it is the processor."""
    device = PROCESSOR if name is None else torch.device(name)
    if device.type == "cpu":
        return ()
    return (f"both models were run on {title_of(device)}, whose results differ from a processor's in the last digits",)


def _running_notice(language: LanguageFacts) -> str:
    """What was quantized while the models ran, and what was not."""
    done = {"inputs of layers": language.activations, "keys and values": language.cache}
    simulated = [f"{what} were quantized ({how})" for what, how in done.items() if how is not None]
    left = [f"{what} were not quantized" for what, how in done.items() if how is None]
    unknown = f"; not simulated: {language.not_simulated}" if language.not_simulated is not None else ""
    return f"{_HOW}: {', '.join([*simulated, *left])}{unknown}"


@offline()
def run_language_models(
    paths: tuple[Path, Path], how: TextRun, *, release: str = "", note: Announce = no_announcement
) -> tuple[LanguageFacts, MetricFacts]:
    """Run both models on the same texts, block by block, with the weights of the checkpoints as float32 numbers.

    Inputs of layers, keys and values are quantized as the configuration of the quantized model says, where it is known.
    On a device float32 numbers are multiplied with all their bits; one block and some rows of both output layers are
    there at a time. Weights are dequantized by the processor.

    Args:
        paths: Folder of the float model, with ``config.json``, whose tokenizer reads texts; folder or file of the
            quantized weights, which are dequantized.
        how: See ``TextRun``; ``read_texts`` says what tokens may be.
        release: Version of quantmedic: another one does not go on from the work of this one.
        note: Is told what a report has to say of how texts were read.

    Returns:
        What the models predict and where the noise comes from, and their perplexities.

    Raises:
        QuantmedicError: ``transformers`` is missing, torch cannot use the device, the network cannot be built or run,
            texts cannot be read, or the memory of the device or the room on disk does not suffice.
    """
    device = PROCESSOR if how.device is None else usable_device(how.device)
    if how.threads is not None:
        torch.set_num_threads(how.threads)
    opened, float_path = open_both(*paths), paths[0]
    skeleton = build_skeleton(float_path if float_path.is_dir() else float_path.parent, Held.of(opened[0]), device)
    floats, quantized = _both_networks(skeleton, opened, float_path)
    simulation, said = asked_simulation(quantized)
    vocabulary, width = skeleton.head.weight.shape
    length = min(how.length or LENGTH, longest_text(skeleton.model))
    texts = read_texts(how.tokens, float_path, vocabulary, length=length, note=note)
    heads = floats.head_rows(), quantized.head_rows()
    plan = plan_of(paths, texts, device, release)
    with enough_memory(device), exact_products(), open_work(how.unfinished, plan, how.announce) as work:
        rooms = Rooms.in_work(work, sum(map(len, texts)), width, chosen_experts(skeleton.model.config))
        spans = spans_of(texts)
        run = Run(floats, quantized, texts, states_behind_norm(skeleton, rooms), (spans, spans), heads, simulation)
        noises = run_blocks(run, rooms, how.progress)
        if "scores" not in work.done:
            work.keep(scores=run.score().plain())
        scores = Scores.of_plain(work.done["scores"])
        _refuse_no_numbers(run.states.floats, float_path)
        found = language_facts(scores, texts, vocabulary, noises)
        found = found.model_copy(update=said | worst_texts(found.kl_by_text, texts, float_path))
        if found.kl_mean is not None:
            chosen = texts_of_trials(scores)
            bench = Bench.of(run, scores, chosen, rooms, how.progress)
            tried = {"trial_texts": tuple(place + 1 for place in chosen), "kl_tried": bench.mean(bench.before)}
            found = try_parts(bench, found.model_copy(update=tried), noises.share_of_front)
        if found.text_scales_share is not None:
            found = found.model_copy(update=misfit_scales(quantized, found.blocks))
        if found.token_scales_share is not None:
            found = found.model_copy(update=misfit_inputs(quantized, found.blocks))
    return found, perplexity_facts(scores)


def _both_networks(skeleton: Skeleton, opened: tuple[Opened, Opened], float_path: Path) -> tuple[Network, Network]:
    wanted = set(skeleton.model.state_dict())
    floats, quantized = opened
    beyond = f"{skeleton.name_of(skeleton.layers)}.{len(skeleton.layers)}."
    if any(name.startswith(beyond) for name in floats.tensors):
        raise ModelError(
            "config.json counts fewer blocks than the weights have",
            where=[str(float_path), f"config   {len(skeleton.layers)} blocks", f"weights  {beyond}…"],
            help="put the config.json there that the weights were saved with",
        )
    return _network_of(skeleton, floats, wanted), _network_of(skeleton, quantized, wanted)


def _network_of(skeleton: Skeleton, opened: Opened, wanted: set[str]) -> Network:
    return Network(skeleton, WeightValues(opened, match_names(wanted, {*opened.tensors, *opened.names_of_codes})))


def _refuse_no_numbers(hidden: NDArray[np.float32], path: Path) -> None:
    for start in range(0, len(hidden), _AT_ONCE):
        largest = np.abs(hidden[start : start + _AT_ONCE]).max()
        let_go(hidden)
        if not np.isfinite(largest):
            raise ModelError(
                "the float model computes what is no number on these texts",
                where=str(path),
                help="its weights or its config are damaged: nothing can be compared with it",
            )
