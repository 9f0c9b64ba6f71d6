"""Both models of a pair of checkpoints run on texts: what they predict, and where the noise comes from."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.from_checkpoint.containers import Opened, open_both
from quantmedic.collectors.from_checkpoint.weight_values import MixedValues, WeightValues, match_names
from quantmedic.collectors.from_language_model.blocks import States, run_alone, run_blocks, spans_of
from quantmedic.collectors.from_language_model.scores import Head, Scores, score_tokens
from quantmedic.collectors.from_language_model.skeleton import Skeleton, build_skeleton
from quantmedic.collectors.from_language_model.tokens import LENGTH, Ids, read_texts
from quantmedic.engine.case.facts import BlockFacts, LanguageFacts, MetricFacts
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.errors import ModelError
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.engine.metrics.paired import mean_interval

METRIC = "perplexity"
_TAIL = 0.999
#: Share of what all blocks make from which on the worst one is tried with its float weights.
TRIED_SHARE = 0.4
Floats = NDArray[np.float64]


def run_language_models(
    float_path: Path,
    quantized_path: Path,
    tokens: Path,
    *,
    length: int = LENGTH,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> tuple[LanguageFacts, MetricFacts]:
    """Run both models on the same texts, block by block, with the weights of the checkpoints as float32 numbers.

    Args:
        float_path: Folder of the float model, with ``config.json``; its tokenizer reads texts.
        quantized_path: Folder or file of the quantized weights, which are dequantized; activations are not quantized.
        tokens: File of texts or token ids; see ``read_texts``.
        length: Tokens that are used of each text.
        threads: Processor threads of torch; as many as it takes by default.
        progress: Called after every block.

    Returns:
        What the models predict and where the noise comes from, and their perplexities.

    Raises:
        QuantmedicError: ``transformers`` is missing, the network cannot be built or run, or texts cannot be read.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    skeleton = build_skeleton(float_path if float_path.is_dir() else float_path.parent)
    sides = _open_sides(skeleton, float_path, quantized_path)
    vocabulary, width = _shape_of_head(skeleton)
    most = getattr(skeleton.model.config, "max_position_embeddings", None)
    texts = read_texts(tokens, float_path, vocabulary, length=min(length, most) if isinstance(most, int) else length)
    heads = _head_of(skeleton, sides[0]), _head_of(skeleton, sides[1])
    count = sum(map(len, texts))
    with tempfile.TemporaryDirectory(prefix="quantmedic-") as folder:
        rooms = [np.memmap(Path(folder) / name, np.float32, "w+", shape=(count, width)) for name in ("float", "quant")]
        run = _Run(skeleton, texts, States(*rooms), heads)
        blocks = run_blocks(skeleton, sides, texts, run.states, progress)
        scores = run.score()
        _refuse_no_numbers(run.states.floats, float_path)
        found = _language_facts(scores, texts, vocabulary, blocks)
        if (found.worst_block_share or 0.0) > TRIED_SHARE:
            mixed = MixedValues(sides[1], sides[0], f"{found.worst_block}.")
            run_alone(skeleton, mixed, texts, run.states.quantized, progress)
            found = _with_trial(found, float(run.score().divergence.mean()))
    return found, perplexity_facts(scores, texts)


@dataclass(frozen=True)
class _Run:
    """Both models on the same texts.

    Attributes:
        skeleton: The network without weights.
        texts: Token ids.
        states: Room for hidden states.
        heads: Output layers of both.
    """

    skeleton: Skeleton
    texts: Sequence[Ids]
    states: States
    heads: tuple[Head, Head]

    def score(self) -> Scores:
        """What both models predict of the next tokens, from the states that their blocks have left."""
        before = np.concatenate([np.arange(span.start, span.stop - 1) for span in spans_of(self.texts)])
        return score_tokens(
            (self.states.floats, self.states.quantized),
            before,
            np.concatenate([ids[1:] for ids in self.texts]),
            self.heads,
            _shape_of_head(self.skeleton)[0],
            _logit_shape(self.skeleton.model.config),
        )


def _with_trial(found: LanguageFacts, mended: float) -> LanguageFacts:
    """What is left of the divergence with the float weights of the worst block."""
    gain = 1 - mended / found.kl_mean if found.kl_mean else None
    return found.model_copy(update={"kl_mended": mended, "worst_block_gain": gain})


def _open_sides(skeleton: Skeleton, float_path: Path, quantized_path: Path) -> tuple[WeightValues, WeightValues]:
    wanted = set(skeleton.model.state_dict())
    floats, quantized = open_both(float_path, quantized_path)
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


def _shape_of_head(skeleton: Skeleton) -> tuple[int, int]:
    rows, width = skeleton.head.weight.shape
    return int(rows), int(width)


def _head_of(skeleton: Skeleton, weights: WeightValues) -> Head:
    """Rows of the output layer; of tied ones those of the embedding, where the checkpoint has no others."""
    layer = skeleton.head
    shape = tuple(layer.weight.shape)
    names = [f"{skeleton.name_of(part)}.weight" for part in (layer, skeleton.embedding)]
    tied = bool(getattr(skeleton.model.config, "tie_word_embeddings", False))
    name = next((own for own in names if own in weights.names), None)
    if name is None or (name != names[0] and not tied):
        raise ModelError(
            "the checkpoint has no output layer",
            where=[f"file    {weights.checkpoint.path}", f"tensor  {names[0]}"],
            help="look whether a shard is missing; tied embeddings need tie_word_embeddings in config.json",
        )
    bias = None
    if layer.bias is not None:
        bias = weights.load(f"{skeleton.name_of(layer)}.bias", tuple(layer.bias.shape))

    def rows_of(rows: slice) -> tuple[torch.Tensor, torch.Tensor | None]:
        found = weights.load(name, shape, rows)
        assert found is not None  # its name is known
        return torch.from_numpy(found), None if bias is None else torch.from_numpy(bias[rows])

    rows_of(slice(0, 1))  # a shape that does not fit is told before anything is run
    return rows_of


def _logit_shape(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What the architecture does to logits: Gemma bends them, Cohere and Granite scale them."""
    cap, factor = getattr(config, "final_logit_softcapping", None), getattr(config, "logit_scale", None) or 1.0
    factor = factor / (getattr(config, "logits_scaling", None) or 1.0)

    def shape(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits * factor if factor != 1.0 else logits
        return cap * torch.tanh(scaled / cap) if cap else scaled

    return shape


def _refuse_no_numbers(hidden: NDArray[np.float32], path: Path) -> None:
    if not np.isfinite(hidden).all():
        raise ModelError(
            "the float model computes what is no number on these texts",
            where=str(path),
            help="its weights or its config are damaged: nothing can be compared with it",
        )


def _language_facts(
    scores: Scores, texts: Sequence[Ids], vocabulary: int, blocks: Sequence[BlockFacts]
) -> LanguageFacts:
    sound = LanguageFacts(
        texts=len(texts),
        tokens=len(scores.divergence),
        vocabulary=vocabulary,
        nonfinite_tokens=int((~np.isfinite(scores.quantized_surprise)).sum()),
        float_surprise=float(scores.float_surprise.mean()) / math.log(vocabulary),
    )
    if sound.nonfinite_tokens:
        return sound
    same = _by_text(scores.same_top.astype(np.float64), texts)
    divergence = _by_text(scores.divergence, texts)
    worst = max(blocks, key=lambda block: block.own_share or 0.0)
    several = len(texts) > 1  # one text alone has no interval
    kl_low, kl_high = np.maximum(mean_interval(divergence), 0.0).tolist() if several else (None, None)
    same_low, same_high = np.clip(mean_interval(same), 0.0, 1.0).tolist() if several else (None, None)
    return sound.model_copy(
        update={
            "kl_mean": float(scores.divergence.mean()),
            "kl_low": kl_low,
            "kl_high": kl_high,
            "kl_tail": float(np.quantile(scores.divergence, _TAIL)),
            "same_top": float(scores.same_top.mean()),
            "same_top_low": same_low,
            "same_top_high": same_high,
            "delta_p": float(np.sqrt(np.mean(scores.delta_p**2))),
            "blocks": tuple(blocks),
            "worst_block": worst.name if worst.own_share is not None else None,
            "worst_block_share": worst.own_share,
        }
    )


def _by_text(values: Floats, texts: Sequence[Ids]) -> Floats:
    """Means of the predicted tokens of each text."""
    ends = np.cumsum([len(ids) - 1 for ids in texts])
    return np.array([part.mean() for part in np.split(values, ends[:-1])])


def perplexity_facts(scores: Scores, texts: Sequence[Ids]) -> MetricFacts:
    """Perplexities of both models over all tokens, and the interval of their difference over texts."""
    if not np.isfinite(scores.quantized_surprise).all():
        return MetricFacts(name=METRIC, higher_is_better=False)
    tallies = [_tally(surprise, texts) for surprise in (scores.float_surprise, scores.quantized_surprise)]
    kind = kind_of(METRIC)
    values = [kind.value(tally) for tally in tallies]
    drop, low, high = kind.drop_interval(*tallies, higher_is_better=False, seed=0)
    several = len(texts) > 1
    return MetricFacts(
        name=METRIC,
        higher_is_better=False,
        dataset="validation",
        samples=len(texts),
        float_value=values[0],
        quantized_value=values[1],
        drop=drop,
        drop_low=low if several else None,
        drop_high=high if several else None,
        relative_drop=drop / values[0],
        gain_share=-high / max(values) if several else None,
    )


def _tally(surprise: Floats, texts: Sequence[Ids]) -> Tally:
    """Negative log-likelihood and tokens of each text."""
    counts = np.array([len(ids) - 1 for ids in texts], np.float64)
    return Tally.of_rows(np.stack([_by_text(surprise, texts) * counts, counts], axis=1))
