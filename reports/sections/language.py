"""Language models that were run: how their predictions differ, and which block makes the noise."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from quantmedic.engine.case.facts import BlockFacts, LanguageFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import Bullets, Cell, Column, Paragraph, Section, Table, make_table
from quantmedic.reports.sections.language_maps import expert_map, position_map, texts_blocks
from quantmedic.reports.text import NOT_MEASURED, count, decibels, name, number, percent, points, tenths

#: Blocks of the table, those that make most noise.
BLOCKS_SHOWN = 40
#: Of compressed-tensors' NVFP4.
_INVERSE = "input_global_scale"
#: What stands in place of both ends.
NO_INTERVAL = "one text has no interval"
#: Scales of the cache that are named with what they should be.
_SCALES_SHOWN = 8
#: Mean divergence from 16 bits over the tokens of WikiText-2, in nats, of Llama 3 8B in types of llama.cpp, those up to
#: Q2_K without an importance matrix. Source: tools/perplexity/README.md of llama.cpp, "LLaMA 3 8b Scoreboard".
PUBLISHED = (
    ("Q8_0", 0.001355),
    ("Q6_K", 0.005452),
    ("Q5_K_M", 0.010762),
    ("Q4_K_M", 0.031273),
    ("Q3_K_M", 0.101913),
    ("Q2_K", 0.445132),
    ("IQ1_S", 2.254554),
)
_WHERE = "in llama.cpp's table"


@dataclass(frozen=True)
class LanguageBox:
    """What running both models on texts has shown."""

    amount: Annotated[str, "how many texts both models were run on"]
    brief: Annotated[tuple[str, ...], "how far predictions differ, as sentences to stand with the verdict"]
    told: Annotated[tuple[str, ...], "where that comes from, as sentences; what the first cause is about comes first"]


def language_box(diagnosis: Diagnosis) -> LanguageBox | None:
    """None where no language models were run."""
    language = diagnosis.model.language
    if language.texts is None:
        return None
    return LanguageBox(count(language.texts, "text"), tuple(_differences(language)), tuple(_origins(diagnosis)))


def blocks_section(diagnosis: Diagnosis) -> Section | None:
    """Which block of a language model makes the noise; None where none was run."""
    language = diagnosis.model.language
    if language.texts is None:
        return None
    loudest = sorted(range(len(language.blocks)), key=lambda k: -(language.blocks[k].own_share or 0.0))[:BLOCKS_SHOWN]
    shown = [language.blocks[k] for k in sorted(loudest)]
    more = len(language.blocks) - len(shown)
    left = [Paragraph(f"{more} more, which make less noise, are in report.json.")] if more else []
    lead = (
        "Signal over noise of the tokens that each block hands on: with the noise of all blocks before it, and with "
        "the float model's values in front of it, which shows its own part, by what makes it: quantized weights, "
        "inputs of its layers, or keys and values. A dash means not measured."
    )
    return Section(
        "blocks",
        "Blocks of the network",
        "Blocks",
        [
            *([Bullets(told)] if (told := list(_origins(diagnosis))) else []),
            Paragraph(lead, "lead"),
            _block_table(language, shown),
            *left,
            *position_map(language),
            *expert_map(language),
            *texts_blocks(language),
        ],
    )


def _block_table(language: LanguageFacts, shown: Sequence[BlockFacts]) -> Table:
    inputs = (Column("SQNR, inputs", "num", decibels), _level_of("activation_noise"))
    cache = (Column("SQNR, K/V cache", "num", decibels), _level_of("cache_noise"))
    columns: list[tuple[Column, Callable[[BlockFacts], Cell]]] = [
        (Column("block", "name"), lambda block: block.name),
        (Column("SQNR, all before", "num", decibels), _level_of("noise")),
        (Column("SQNR, its own weights", "num", decibels), _level_of("own_noise")),
        *([inputs] if any(block.activation_noise is not None for block in language.blocks) else ()),
        *([cache] if any(block.cache_noise is not None for block in language.blocks) else ()),
        (Column("share of what all blocks make", "bar", tenths), lambda b: b.own_share),
        (Column("first token / others", "num"), lambda block: block.first_token_ratio),
        (Column("largest / median", "num"), lambda block: block.largest_ratio),
        (Column("its token / channel", "num"), _place),
    ]
    return make_table("Blocks", shown, columns, "dense")


def _level_of(noise: str) -> Callable[[BlockFacts], Cell]:
    return lambda block: _level(getattr(block, noise))


def samples_of_language(language: LanguageFacts) -> str:
    """How much was predicted; empty where nothing was."""
    if language.texts is None:
        return ""
    return f"{count(language.texts, 'text')}, {count(language.tokens or 0, 'token')} predicted"


def _differences(language: LanguageFacts) -> Iterator[str]:
    if language.nonfinite_tokens:
        yield f"The quantized model predicts what is no number for {count(language.nonfinite_tokens, 'token')}."
    elif language.kl_mean is not None:
        yield (
            f"KL divergence of the predictions {number(language.kl_mean)} nats per token "
            f"({_interval(number(language.kl_low), number(language.kl_high))}), {published_text(language.kl_mean)}; "
            f"99.9 % of the tokens below {number(language.kl_tail)}."
        )
        yield (
            f"Both models put the same token first for {percent(language.same_top)} of the tokens "
            f"({_interval(percent(language.same_top_low), percent(language.same_top_high))}); the probability of the "
            f"token that follows in the text changes by {points(language.delta_p)}, root of the mean square."
        )


def _interval(low: str, high: str) -> str:
    """Both ends; in words where one text has none."""
    return NO_INTERVAL if NOT_MEASURED in (low, high) else f"{low} … {high}"


def _origins(diagnosis: Diagnosis) -> Iterator[str]:
    """What makes the divergence: what the first cause is about before all else, then what costs most."""
    language = diagnosis.model.language
    if language.nonfinite_tokens:
        return
    found = [origin for origin in _all_origins(language) if origin.told]
    first = next((cause for cause in diagnosis.causes if not cause.explained_by), None)
    facts = [row.fact.removeprefix("model.") for row in first.evidence] if first is not None else []
    # Sorting keeps the order of those that are alike.
    found.sort(key=lambda origin: (not any(fact.startswith(origin.facts) for fact in facts), -(origin.gain or 0.0)))
    for origin in found:
        yield from origin.told
    if language.not_simulated is not None:
        yield f"Not simulated: {language.not_simulated}."


class _Origin(NamedTuple):
    """One thing that may make the divergence."""

    told: tuple[str, ...]
    facts: tuple[str, ...]
    """Beginnings of the facts by which a cause is about it."""
    gain: float | None
    """Share of the divergence that goes with it in float; None where it was not tried."""


def _all_origins(language: LanguageFacts) -> Iterator[_Origin]:
    yield _Origin(tuple(_block_texts(language)), ("block_", "language.worst_block"), language.worst_block_gain)
    yield _Origin(tuple(_router_texts(language)), ("router_", "language.router_"), language.router_gain)
    yield _Origin(tuple(_end_texts(language)), ("language.head", "language.embedding"), _end_gain(language))
    activations = ("language.activation", "language.token_scales")
    yield _Origin(tuple(_activation_texts(language)), activations, language.activations_gain)
    cache = ("language.cache", "language.text_scales", "language.keys")
    yield _Origin(tuple(_cache_texts(language)), cache, language.cache_gain)


def _router_texts(language: LanguageFacts) -> Iterator[str]:
    if language.router_agreement is not None:
        yield (
            f"Routers choose the same experts as in float for {percent(language.router_agreement, 1)} of the tokens at "
            f"worst, in {name(language.router_block)}."
        )
    if language.router_gain is not None:
        yield _float_text("routers", language.router_gain, language)


def _block_texts(language: LanguageFacts) -> Iterator[str]:
    if language.worst_block is not None and len(language.blocks) > 1:
        yield (
            f"The block {name(language.worst_block)} causes {percent(language.worst_block_share, 0)} of the weight "
            f"noise of all {len(language.blocks)} blocks."
            f"{_trial_text(language)}"
        )


def _end_texts(language: LanguageFacts) -> Iterator[str]:
    """What the layers in front of the first block and behind the last one cost."""
    gains = {"embedding": language.embedding_gain, "output layer": language.head_gain}
    for layer, gain in gains.items():
        if gain is not None:
            yield _float_text(layer, gain, language)


def _float_text(part: str, gain: float, language: LanguageFacts) -> str:
    tried = f" of {count(len(language.trial_texts), 'text')}" if language.trial_texts else ""
    return f"With the float {part}, {percent(gain, 0)} of the divergence{tried} is gone."


def _end_gain(language: LanguageFacts) -> float | None:
    return max((gain for gain in (language.embedding_gain, language.head_gain) if gain is not None), default=None)


def _activation_texts(language: LanguageFacts) -> Iterator[str]:
    if language.activations is not None:
        yield (
            f"Inputs of layers were quantized ({language.activations}); with them in float the divergence is "
            f"{number(language.kl_float_activations)} nats{_tried_text(language)}"
            f"{_scales_text('token', language.token_scales_share)}."
        )
    if language.input_scales:
        yield _misfit_text(language.input_scales, language.input_scales_stored)


def _cache_texts(language: LanguageFacts) -> Iterator[str]:
    if language.cache is not None:
        yield (
            f"Keys and values were quantized ({language.cache}); with them in float the divergence is "
            f"{number(language.kl_float_cache)} nats{_tried_text(language)}"
            f"{_scales_text('text', language.text_scales_share)}."
        )
    if language.cache_scales:
        yield _misfit_text(language.cache_scales, language.cache_scales_stored)


def _misfit_text(needed: Mapping[str, float], stored: Mapping[str, float]) -> str:
    """Scales as they are stored and as they should be, those that are furthest off first."""
    order = sorted(needed, key=lambda scale: -abs(math.log(_times_off(needed[scale], stored.get(scale)))))
    shown, more = order[:_SCALES_SHOWN], len(order) - _SCALES_SHOWN
    inverse = any(scale.endswith(_INVERSE) for scale in shown)
    return (
        f"Stored scales that are more than twice off → what these texts need: "
        f"{', '.join(_scale_text(scale, needed[scale], stored.get(scale)) for scale in shown)}"
        f"{f' and {more} more, in report.json' if more > 0 else ''}."
        f"{f' What is called {_INVERSE} is the inverse of the scale: too large a number cuts off.' if inverse else ''}"
    )


def _times_off(needed: float, stored: float | None) -> float:
    """How many times as large as needed; 1 where that is not known."""
    return stored / needed if stored and needed > 0 and 0 < stored / needed < math.inf else 1.0


def _scale_text(scale: str, needed: float, stored: float | None) -> str:
    return f"{name(scale)} {number(stored)} → {number(needed)} ({number(_times_off(needed, stored), 2)} times)"


def _scales_text(what: str, share: float | None) -> str:
    return "" if share is None else f"; scales for each {what} recover {percent(share, 0)} of that"


def _trial_text(language: LanguageFacts) -> str:
    if language.kl_mended is None:
        return ""
    low, high = (percent(gain, 0) for gain in (language.worst_block_gain_low, language.worst_block_gain_high))
    interval = "" if language.worst_block_gain_low is None or low == high else f" ({low} … {high})"
    return (
        f" With the float weights of that block, the divergence is {number(language.kl_mended)} nats"
        f"{_tried_text(language)}: {percent(language.worst_block_gain, 0)}{interval} of it is gone."
    )


def _tried_text(language: LanguageFacts) -> str:
    """Of which texts that is; empty where an older release tried all."""
    if language.kl_tried is None:
        return ""
    return f" in place of {number(language.kl_tried)} on {count(len(language.trial_texts), 'text')}"


def _place(block: BlockFacts) -> Cell:
    if block.largest_position is None or block.largest_channel is None:
        return None
    return f"{block.largest_position} / {block.largest_channel}"


def _level(noise: float | None) -> float | None:
    if noise is None or not noise > 0:
        return None if noise is None else math.inf
    return -10 * math.log10(noise)


def published_text(divergence: float) -> str:
    """Between which published types a mean divergence in nats lies, as a phrase."""
    finer = [each for each in PUBLISHED if each[1] <= divergence]
    coarser = [each for each in PUBLISHED if each[1] > divergence]
    if not finer:
        return f"less than Llama 3 8B loses with {_type_text(coarser[0])} {_WHERE}"
    if not coarser:
        return f"no less than Llama 3 8B loses with {_type_text(finer[-1])} {_WHERE}"
    return f"what Llama 3 8B loses between {_type_text(finer[-1])} and {_type_text(coarser[0])} {_WHERE}"


def _type_text(published: tuple[str, float]) -> str:
    return f"{published[0]} ({number(published[1], 2)})"
