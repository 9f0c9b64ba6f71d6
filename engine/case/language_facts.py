"""Facts of causal language models that were run on a set of texts."""

from collections.abc import Mapping

from pydantic import Field

from quantmedic.engine.case.fact_base import Facts, Prose, fact


class ExpertFacts(Facts):
    """One expert of a block."""

    share: float | None = fact("share of what the float model's router chooses", "share")
    noise: float | None = fact(
        "squared error of what it makes, with its quantized weights, of tokens that the float router gives it / "
        "squared length; on the first four texts",
        "ratio",
    )


class TextFacts(Facts):
    """One text."""

    place: int | None = fact("which text it is, from 1")
    tokens: int | None = fact("tokens that are predicted of it")
    kl: float | None = fact("mean divergence of its tokens", "nats")
    beginning: Prose[str | None] = fact("its first words, or its first token ids")


class RunningInputFacts(Facts):
    """Inputs of one layer of a language model, quantized while it ran on the first four texts."""

    layer: str | None = fact("layer that reads them")
    noise: float | None = fact("mean over tokens of the squared error of these inputs / their squared length", "ratio")
    clipped: float | None = fact(
        "share of them beyond the last code of a stored scale; None where scales are made while running", "share"
    )
    scale: float | None = fact("stored scale; see input_scale of the block", "value")
    scale_needed: float | None = fact("scale that these inputs need; see input_scale_needed of the block", "value")
    scale_ratio: float | None = fact("scale / scale_needed", "ratio")


class BlockFacts(Facts):
    """One block of the network: what it hands on, in the float model and in the quantized one.

    Noise is that of a token: the squared distance of both hidden states over the squared length of the float one.
    """

    name: str | None = fact("name of the block")
    noise: float | None = fact("mean noise of the tokens behind the block, with that of all blocks before it", "ratio")
    own_noise: float | None = fact(
        "the same with the float model's values in front of the block: its own part", "ratio"
    )
    own_share: float | None = fact("own_noise / sum of that of all blocks", "share")
    first_token_ratio: float | None = fact("noise of the first tokens of the texts / mean noise of all others", "ratio")
    largest_ratio: float | None = fact(
        "largest magnitude that the float block hands on / median magnitude of what it hands on", "ratio"
    )
    largest_position: int | None = fact("place in its text of the token with the largest magnitude, from 0")
    largest_channel: int | None = fact("channel of that magnitude")
    noise_by_position: tuple[float | None, ...] = Field(
        default=(), description="noise by the places of positions: of the first token, then of bins of the others"
    )
    router_agreement: float | None = fact(
        "share of the tokens for which both models choose the same experts in this block", "share"
    )
    router_moved: float | None = fact(
        "mean over the tokens of the share that goes to other experts than in the float model", "share"
    )
    experts: tuple[ExpertFacts, ...] = Field(default=(), description="experts of the block, in their order")
    activation_noise: float | None = fact(
        "mean noise of the tokens behind the float block where the inputs of its layers alone are quantized", "ratio"
    )
    cache_noise: float | None = fact("the same where its keys and values alone are quantized", "ratio")
    input_layer: str | None = fact(
        "layer of the block whose inputs quantizing changes most: by its noise of a token, or by "
        "input_channel_noise where that is more"
    )
    input_channel_noise: float | None = fact(
        "mean over channels of the squared error of these inputs / squared inputs, both summed over tokens: near 1 "
        "where a few loud channels leave all others no steps",
        "ratio",
    )
    input_clipped: float | None = fact(
        "share of them beyond the last code of a stored scale; None where scales are made while running, which none is",
        "share",
    )
    input_scale: float | None = fact(
        "stored scale of these inputs; of NVFP4 the one that scales of groups are multiplied with, which "
        "compressed-tensors stores as its inverse",
        "value",
    )
    input_scale_needed: float | None = fact(
        "scale whose last code is the largest of these inputs in the float model, on the first four texts: its "
        "magnitude / last code; of NVFP4 / last code / 448",
        "value",
    )
    input_scale_ratio: float | None = fact("input_scale / input_scale_needed", "ratio")
    inputs: tuple[RunningInputFacts, ...] = Field(
        default=(), description="the same of each layer of the block whose inputs are quantized"
    )
    input_token_ratio: float | None = fact("largest magnitude of all tokens / median of those of the tokens", "ratio")
    input_channel_ratio: float | None = fact(
        "largest magnitude of all channels / median of those of the channels", "ratio"
    )
    key_noise: float | None = fact("mean over tokens of the squared error of keys / their squared length", "ratio")
    key_clipped: float | None = fact("as input_clipped, of keys", "share")
    value_noise: float | None = fact("as key_noise, of values", "ratio")
    value_clipped: float | None = fact("as key_clipped, of values", "share")
    key_scale: float | None = fact("stored scale of the keys; the largest where there is one per head", "value")
    key_scale_needed: float | None = fact(
        "scale whose last code is the largest key of the first four texts: its magnitude / last code", "value"
    )
    value_scale: float | None = fact("as key_scale, of values", "value")
    value_scale_needed: float | None = fact("as key_scale_needed, of values", "value")
    key_scale_ratio: float | None = fact("key_scale / key_scale_needed", "ratio")
    value_scale_ratio: float | None = fact("value_scale / value_scale_needed", "ratio")


class LanguageFacts(Facts):
    """Both models on the same texts; intervals are over texts, for the tokens of one text are not independent."""

    texts: int | None = fact("texts that both models were run on")
    tokens: int | None = fact("tokens that were predicted: all but the first of each text")
    vocabulary: int | None = fact("size of the vocabulary")
    nonfinite_tokens: int | None = fact(
        "tokens of which the quantized model predicts what is no number; where there are any, nothing is compared"
    )
    float_surprise: float | None = fact(
        "mean negative log-likelihood of the float model / logarithm of the vocabulary: 1 for guessing", "ratio"
    )
    kl_mean: float | None = fact(
        "mean over the tokens of the Kullback-Leibler divergence of the quantized model's prediction from the float "
        "model's, in nats",
        "nats",
    )
    kl_low: float | None = fact("lower end of its 95 % interval, seeded bootstrap of the texts", "nats")
    kl_high: float | None = fact("upper end of that interval", "nats")
    kl_tail: float | None = fact("99.9 % quantile of the divergence over the tokens", "nats")
    same_top: float | None = fact("share of tokens for which both models predict the same token first", "share")
    same_top_low: float | None = fact("lower end of its 95 % interval, seeded bootstrap of the texts", "share")
    same_top_high: float | None = fact("upper end of that interval", "share")
    delta_p: float | None = fact(
        "root mean square over the tokens of the change of the probability that the token of the text gets", "share"
    )
    blocks: tuple[BlockFacts, ...] = Field(default=(), description="blocks in the order in which they are run")
    worst_block: str | None = fact("block with the largest own_noise")
    worst_block_share: float | None = fact("own_share of that block", "share")
    trial_texts: tuple[int, ...] = Field(
        default=(), description="texts that trials were run on, from 1: a quarter of them, evenly by their divergence"
    )
    kl_tried: float | None = fact("kl_mean of these texts with all that is quantized", "nats")
    kl_mended: float | None = fact(
        "kl_mean of these texts with the float weights of worst_block; run where worst_block_share is over 0.4",
        "nats",
    )
    worst_block_gain: float | None = fact("1 - kl_mended / kl_tried", "share")
    worst_block_gain_low: float | None = fact(
        "lower end of its 95 % interval, seeded bootstrap of these texts", "share"
    )
    worst_block_gain_high: float | None = fact("upper end of that interval", "share")
    embedding_gain: float | None = fact(
        "1 - kl_tried with the float embedding, and output layer where both are tied, / kl_tried; run where "
        "the embedding makes over 0.4 of the noise of it and all blocks",
        "share",
    )
    head_gain: float | None = fact(
        "1 - kl_tried with the float output layer / kl_tried; computed where the output layers differ", "share"
    )
    positions: tuple[int, ...] = Field(
        default=(), description="first place of each bin of tokens: 0 for the first token, then of the others"
    )
    kl_by_position: tuple[float | None, ...] = Field(
        default=(), description="mean divergence of what is predicted at the tokens of each bin, in nats"
    )
    kl_by_text: tuple[float, ...] = Field(default=(), description="mean divergence of each text, in nats")
    tokens_by_text: tuple[int, ...] = Field(default=(), description="tokens that are predicted of each text")
    surprise_by_text: tuple[float, ...] = Field(
        default=(),
        description="negative log-likelihood of each text in the quantized model, of all its tokens together, in nats",
    )
    text_hashes: tuple[int, ...] = Field(
        default=(), description="first 48 bits of SHA-256 of the token ids of each text; in cases without names none"
    )
    worst_texts: tuple[TextFacts, ...] = Field(
        default=(), description="texts with the largest divergence, the worst first; at most ten"
    )
    router_agreement: float | None = fact("lowest router_agreement of all blocks", "share")
    router_block: str | None = fact("block with the lowest router_agreement")
    router_gain: float | None = fact(
        "1 - kl_tried with the float weights of all routers / kl_tried; run where those of the quantized model are "
        "others",
        "share",
    )
    left_to_blocks: float | None = fact(
        "1 - the largest of head_gain, embedding_gain, router_gain, activations_gain and cache_gain: share of the "
        "divergence that the weights of the blocks can make",
        "share",
    )
    activations: Prose[str | None] = fact("how the inputs of layers were quantized while the quantized model ran")
    cache: Prose[str | None] = fact("how keys and values were quantized")
    not_simulated: Prose[str | None] = fact(
        "what the checkpoint quantizes, by its configuration or by stored scales, and was not quantized here, and why"
    )
    scales_unsaid: int | None = fact(
        "stored scales of inputs and of the cache of which no configuration says how they are used"
    )
    kl_float_activations: float | None = fact(
        "kl_tried with inputs of layers in float; run where they are quantized", "nats"
    )
    activations_gain: float | None = fact("1 - kl_float_activations / kl_tried", "share")
    token_scales_share: float | None = fact(
        "share of what inputs in float take away of kl_tried that a scale per token, made while running, takes away, "
        "too; run where activations_gain is over 0.4 and scales are stored",
        "share",
    )
    activation_block: BlockFacts = Field(
        default=BlockFacts(), description="the block with the largest activation_noise, where inputs are quantized"
    )
    activation_block_share: float | None = fact("activation_noise of that block / that of all blocks", "share")
    activation_block_gain: float | None = fact(
        "1 - kl_tried with inputs in float in that block alone / kl_tried; run where activations_gain is over 0.4",
        "share",
    )
    kl_float_cache: float | None = fact("kl_tried with keys and values in float; run where they are quantized", "nats")
    cache_gain: float | None = fact("1 - kl_float_cache / kl_tried", "share")
    text_scales_share: float | None = fact(
        "share of what keys and values in float take away of kl_tried that scales made of each text take away, too; "
        "run where cache_gain is over 0.4 and scales are stored",
        "share",
    )
    cache_scales: Mapping[str, float] = Field(
        default={},
        description="scale that the texts need (key_scale_needed, value_scale_needed), by the name of each stored one "
        "that is more than twice as large or small; where text_scales_share is known",
    )
    cache_scales_stored: Mapping[str, float] = Field(
        default={}, description="these as they are stored; the largest where there is one per head"
    )
    cache_scales_off: int | None = fact("number of cache_scales")
    input_scales: Mapping[str, float] = Field(
        default={},
        description="what the texts need in place of each stored scale of inputs that is more than twice as large or "
        "small, by its name and as it is stored: of compressed-tensors' NVFP4 (input_global_scale) the inverse of the "
        "scale; where token_scales_share is known",
    )
    input_scales_stored: Mapping[str, float] = Field(default={}, description="these as they are stored")
    input_scales_off: int | None = fact("number of input_scales")
    keys_gain: float | None = fact(
        "1 - kl_tried with keys in float and values quantized / kl_tried; run where cache_gain is over 0.4", "share"
    )
    cache_block: BlockFacts = Field(
        default=BlockFacts(), description="the block with the largest cache_noise, where keys and values are quantized"
    )
