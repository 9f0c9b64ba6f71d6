"""Both models of a pair of checkpoints run on texts: what they predict, and where the noise comes from."""

import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.from_checkpoint.containers import Opened, open_both
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues, match_names
from quantmedic.collectors.from_language_model.bench import Bench, texts_of_trials
from quantmedic.collectors.from_language_model.blocks import Noises, run_blocks, states_behind_norm
from quantmedic.collectors.from_language_model.configuration import Held
from quantmedic.collectors.from_language_model.parts_tried import try_parts
from quantmedic.collectors.from_language_model.positions import Positions, means_of
from quantmedic.collectors.from_language_model.rooms import Rooms, let_go
from quantmedic.collectors.from_language_model.routing import chosen_experts
from quantmedic.collectors.from_language_model.runs import Run, head_of, shape_of_head
from quantmedic.collectors.from_language_model.scheme_scales import (
    Asked,
    asked_simulation,
    misfit_inputs,
    misfit_scales,
)
from quantmedic.collectors.from_language_model.skeleton import Skeleton, build_skeleton
from quantmedic.collectors.from_language_model.sources import shares_of_sources
from quantmedic.collectors.from_language_model.spans import spans_of
from quantmedic.collectors.from_language_model.text_facts import hash_of_text, worst_texts
from quantmedic.collectors.from_language_model.text_scores import Scores
from quantmedic.collectors.from_language_model.tokens import LENGTH, Ids, TokenSource, longest_text, read_texts
from quantmedic.collectors.from_language_model.unfinished import hash_of_texts, open_work, state_of_files
from quantmedic.collectors.from_torch.devices import PROCESSOR, enough_memory, exact_products, title_of
from quantmedic.engine.case.facts import LanguageFacts, MetricFacts
from quantmedic.engine.case.language_facts import BlockFacts
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import ModelError
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.engine.metrics.paired import mean_interval
from quantmedic.engine.offline import offline

METRIC = "perplexity"
#: Tokens that are looked at in one go.
_AT_ONCE = 512
Floats = NDArray[np.float64]


@offline()
def run_language_models(
    float_path: Path,
    quantized_path: Path,
    tokens: TokenSource,
    *,
    length: int = LENGTH,
    threads: int | None = None,
    device: torch.device = PROCESSOR,
    unfinished: Path | None = None,
    release: str = "",
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
    note: Announce = no_announcement,
) -> tuple[LanguageFacts, MetricFacts]:
    """Run both models on the same texts, block by block, with the weights of the checkpoints as float32 numbers.

    Inputs of layers, keys and values are quantized as the configuration of the quantized model says, where it is known.

    Args:
        float_path: Folder of the float model, with ``config.json``; its tokenizer reads texts.
        quantized_path: Folder or file of the quantized weights, which are dequantized.
        tokens: Texts or token ids; see ``read_texts``.
        length: Tokens that are used of each text.
        threads: Processor threads of torch; as many as it takes by default.
        device: Where blocks run and predictions are compared, with float32 numbers multiplied with all their bits. One
            block and some rows of both output layers are there at a time. Weights are dequantized by the processor.
        unfinished: Folder that keeps what is finished where the run is interrupted, and from which the same run goes
            on; by default nothing is kept.
        release: Version of quantmedic: another one does not go on from the work of this one.
        progress: Called after every block.
        announce: Is told where a run goes on, or begins anew.
        note: Is told what a report has to say of how texts were read.

    Returns:
        What the models predict and where the noise comes from, and their perplexities.

    Raises:
        QuantmedicError: ``transformers`` is missing, the network cannot be built or run, texts cannot be read, or the
            memory of the device does not suffice.
        InterruptedRun: Ctrl-C, and something is kept.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_both(float_path, quantized_path)
    folder = float_path if float_path.is_dir() else float_path.parent
    skeleton = build_skeleton(folder, Held.of(opened[0][0]), device)
    sides = _values_of_both(skeleton, opened, float_path)
    asked = asked_simulation(skeleton, sides[1])
    vocabulary, width = shape_of_head(skeleton)
    length = min(length, longest_text(skeleton.model))
    texts = read_texts(tokens, float_path, vocabulary, length=length, note=note)
    heads = head_of(skeleton, sides[0]), head_of(skeleton, sides[1])
    count = sum(map(len, texts))
    plan = _plan_of((float_path, quantized_path), texts, device, release)
    with enough_memory(device), exact_products(), open_work(unfinished, plan, announce) as work:
        rooms = Rooms.in_work(work, count, width, chosen_experts(skeleton.model.config))
        spans = spans_of(texts)
        run = Run(skeleton, texts, states_behind_norm(skeleton, rooms), (spans, spans), heads, asked.simulation)
        noises = run_blocks(skeleton, sides, texts, rooms, run.simulation, progress)
        scores = Scores(**work.arrays("scores", lambda: vars(run.score())))
        _refuse_no_numbers(run.states.floats, float_path)
        found = language_facts(scores, texts, vocabulary, noises)
        found = found.model_copy(update=_said_of(asked) | worst_texts(found.kl_by_text, texts, float_path))
        if found.kl_mean is not None:
            chosen = texts_of_trials(scores)
            bench = Bench.of(run, scores, chosen, rooms, progress)
            tried = {"trial_texts": tuple(place + 1 for place in chosen), "kl_tried": bench.mean(bench.before)}
            found = try_parts(bench, sides, found.model_copy(update=tried))
        if found.text_scales_share is not None:
            found = found.model_copy(update=misfit_scales(skeleton, sides[1], found.blocks))
        if found.token_scales_share is not None:
            found = found.model_copy(update=misfit_inputs(skeleton, sides[1], found.blocks))
    return found, perplexity_facts(scores)


def _plan_of(paths: Sequence[Path], texts: Sequence[Ids], device: torch.device, release: str) -> dict[str, object]:
    """All that the results depend on, by the word that is said where it has changed."""
    return {
        "files": state_of_files(paths),
        "texts": hash_of_texts(texts),
        "threads": torch.get_num_threads(),
        "devices": title_of(device),
        "releases": [release, torch.__version__, version("transformers")],
    }


def _values_of_both(
    skeleton: Skeleton, opened: tuple[Opened, Opened], float_path: Path
) -> tuple[WeightValues, WeightValues]:
    wanted = set(skeleton.model.state_dict())
    floats, quantized = opened
    beyond = f"{skeleton.name_of(skeleton.layers)}.{len(skeleton.layers)}."
    if any(name.startswith(beyond) for name in floats[0].tensors):
        raise ModelError(
            "config.json counts fewer blocks than the weights have",
            where=[str(float_path), f"config   {len(skeleton.layers)} blocks", f"weights  {beyond}…"],
            help="put the config.json there that the weights were saved with",
        )
    return _values_of(floats, wanted), _values_of(quantized, wanted)


def _values_of(opened: Opened, wanted: set[str]) -> WeightValues:
    checkpoint, layers, refused = opened
    bases = {f"{name}.weight" if name else "weight" for name in (*layers, *refused)}
    names = match_names(wanted, {*checkpoint.tensors, *bases})
    return WeightValues(checkpoint, layers, refused, names)


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


def language_facts(scores: Scores, texts: Sequence[Ids], vocabulary: int, noises: Noises) -> LanguageFacts:
    """What both models predict, with intervals over texts, and where the noise is made."""
    sound = LanguageFacts(
        texts=len(texts),
        tokens=scores.count,
        vocabulary=vocabulary,
        nonfinite_tokens=int(scores.nonfinite.sum()),
        float_surprise=float(scores.float_surprise.sum()) / scores.count / math.log(vocabulary),
    )
    if sound.nonfinite_tokens:
        return sound
    same = scores.same_top / scores.tokens
    divergence = scores.divergence / scores.tokens
    worst = max(noises.blocks, key=lambda block: block.own_share or 0.0, default=BlockFacts())
    several = len(texts) > 1  # one text alone has no interval
    kl_low, kl_high = np.maximum(mean_interval(divergence), 0.0).tolist() if several else (None, None)
    same_low, same_high = np.clip(mean_interval(same), 0.0, 1.0).tolist() if several else (None, None)
    return sound.model_copy(
        update={
            "kl_mean": float(scores.divergence.sum()) / scores.count,
            "kl_low": kl_low,
            "kl_high": kl_high,
            "kl_tail": scores.tail,
            "same_top": float(scores.same_top.sum()) / scores.count,
            "same_top_low": same_low,
            "same_top_high": same_high,
            "delta_p": math.sqrt(float(scores.delta_p.sum()) / scores.count),
            "blocks": tuple(noises.blocks),
            "embedding_noise": noises.front,
            "embedding_share": _share_of_front(noises),
            "worst_block": worst.name if worst.own_share is not None else None,
            "worst_block_share": worst.own_share,
            **shares_of_sources(noises.blocks),
            "positions": Positions.of_texts([len(ids) for ids in texts]).starts,
            "kl_by_position": means_of(scores.place_sums, scores.place_counts),
            "kl_by_text": tuple(divergence.tolist()),
            "tokens_by_text": tuple(len(ids) - 1 for ids in texts),
            "surprise_by_text": tuple(scores.quantized_surprise.tolist()),
            "text_hashes": tuple(map(hash_of_text, texts)),
            **_worst_router(noises.blocks),
        }
    )


def _said_of(asked: Asked) -> dict[str, object]:
    unknown = "; ".join(asked.unknown) or None
    said: dict[str, object] = {"activations": asked.inputs or None, "cache": asked.cache or None}
    return said | {"not_simulated": unknown, "scales_unsaid": asked.unsaid}


def _worst_router(blocks: Sequence[BlockFacts]) -> dict[str, object]:
    known = [block for block in blocks if block.router_agreement is not None]
    if not known:
        return {}
    worst = min(known, key=lambda block: block.router_agreement or 0.0)
    return {"router_agreement": worst.router_agreement, "router_block": worst.name}


def _share_of_front(noises: Noises) -> float | None:
    front = noises.front or 0.0
    total = front + sum(block.own_noise or 0.0 for block in noises.blocks)
    return front / total if 0 < total < math.inf else None


def perplexity_facts(scores: Scores) -> MetricFacts:
    """Perplexities of both models over all tokens, and the interval of their difference over texts."""
    if scores.nonfinite.any():
        return MetricFacts(name=METRIC, higher_is_better=False)
    tallies = [_tally(surprise, scores) for surprise in (scores.float_surprise, scores.quantized_surprise)]
    before, after = (kind_of(METRIC).value(tally) for tally in tallies)
    low, high = _growth_interval(scores, before) if len(scores.tokens) > 1 else (None, None)
    return MetricFacts(
        name=METRIC,
        higher_is_better=False,
        dataset="validation",
        samples=len(scores.tokens),
        float_value=before,
        quantized_value=after,
        drop=after - before,
        drop_low=low,
        drop_high=high,
        relative_drop=after / before - 1,
        gain_share=None if high is None else -high / max(before, after),
    )


def _growth_interval(scores: Scores, before: float) -> tuple[float, float]:
    """Interval of the growth of the perplexity: that of the difference of the mean log-likelihoods, exponentiated.

    The perplexity of the quantized model is that of the float one times the exponential of this difference, so that the
    spread of texts that both find hard is not in it. Texts of several lengths count as in a ratio of sums.
    """
    extra = scores.quantized_surprise - scores.float_surprise
    mean = float(extra.sum()) / scores.count
    parts = mean + (extra - mean * scores.tokens) / scores.tokens.mean()
    low, high = mean_interval(parts)
    with np.errstate(over="ignore"):
        return before * float(np.expm1(low)), before * float(np.expm1(high))


def _tally(surprise: Floats, scores: Scores) -> Tally:
    """Negative log-likelihood and tokens of each text."""
    return Tally.of_rows(np.stack([surprise, scores.tokens], axis=1))
