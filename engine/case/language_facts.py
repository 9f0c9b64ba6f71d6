"""Facts of causal language models that were run on a set of texts."""

from pydantic import Field

from quantmedic.engine.case.fact_base import Facts, fact


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
    kl_mended: float | None = fact(
        "kl_mean of the quantized model with the float weights of worst_block; run where worst_block_share is over 0.4",
        "nats",
    )
    worst_block_gain: float | None = fact("1 - kl_mended / kl_mean", "share")
    embedding_noise: float | None = fact(
        "mean noise of the tokens in front of the first block: what the embedding makes", "ratio"
    )
    embedding_share: float | None = fact("embedding_noise / sum of it and the own_noise of all blocks", "share")
    embedding_gain: float | None = fact(
        "1 - kl_mean with the float embedding, and output layer where both are tied, / kl_mean; run where "
        "embedding_share is over 0.4",
        "share",
    )
    head_gain: float | None = fact(
        "1 - kl_mean with the float output layer / kl_mean; computed where the output layers differ", "share"
    )
