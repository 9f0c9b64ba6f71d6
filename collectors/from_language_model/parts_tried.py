"""Parts of the quantized model that are tried with their float weights: what each of them costs."""

import numpy as np

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import MixedValues, WeightValues
from quantmedic.collectors.from_language_model.blocks import run_alone
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.sources_tried import try_sources
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the noise from which on the part that makes it is tried.
TRIED_SHARE = 0.4
#: Rows of the output layer that are looked at: where none differs, it is not quantized.
_ROWS_OF_HEAD = 64


def try_parts(
    run: Run, sides: tuple[WeightValues, WeightValues], found: LanguageFacts, progress: Progress
) -> LanguageFacts:
    """The facts with what is left of the divergence where the head, the embedding or the worst block is float.

    Args:
        run: Both models, whose blocks were run; the states of the quantized one are overwritten.
        sides: Weights of the float and of the quantized model.
        found: What is known without trials.
        progress: Called after every block that is run again.

    Raises:
        ModelError: See ``run_blocks``.
    """
    gains = {}
    if _is_changed(run):
        gains["head_gain"] = _gain(run, found, with_float_head=True)
    if (found.embedding_share or 0.0) > TRIED_SHARE:
        skeleton = run.skeleton
        _run_mended(run, sides, f"{skeleton.name_of(skeleton.embedding)}.", progress)
        # Tied, both are one tensor, and it is mended in both places.
        is_tied = bool(getattr(skeleton.model.config, "tie_word_embeddings", False))
        gains["embedding_gain"] = _gain(run, found, with_float_head=is_tied)
    update: dict[str, object] = {**gains, **try_sources(run, sides[1], found, progress)}
    if (found.worst_block_share or 0.0) > TRIED_SHARE:
        _run_mended(run, sides, f"{found.worst_block}.", progress)
        mended = float(run.score().divergence.mean())
        update |= {"kl_mended": mended, "worst_block_gain": _share(mended, found)}
    return found.model_copy(update=update)


def _run_mended(run: Run, sides: tuple[WeightValues, WeightValues], prefix: str, progress: Progress) -> None:
    """Run the quantized model with the float weights of one part."""
    mixed = MixedValues(sides[1], sides[0], prefix)
    run_alone(run.skeleton, mixed, run.texts, run.states.quantized, run.simulation, progress)


def _gain(run: Run, found: LanguageFacts, *, with_float_head: bool) -> float | None:
    """Share of the divergence that the states as they are now take away."""
    heads = (run.heads[0], run.heads[0]) if with_float_head else run.heads
    return _share(float(run.score(heads).divergence.mean()), found)


def _share(mended: float, found: LanguageFacts) -> float | None:
    return 1 - mended / found.kl_mean if found.kl_mean else None


def _is_changed(run: Run) -> bool:
    """The output layers differ, by their first rows."""
    rows = slice(0, min(_ROWS_OF_HEAD, run.skeleton.head.weight.shape[0]))
    ours, theirs = (head(rows)[0].numpy() for head in run.heads)
    return not np.array_equal(ours, theirs)
