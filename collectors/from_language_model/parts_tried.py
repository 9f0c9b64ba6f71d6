"""Parts of the quantized model that are tried with their float weights: what each of them costs."""

import numpy as np

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import MixedValues, WeightValues
from quantmedic.collectors.from_language_model.blocks import run_alone
from quantmedic.collectors.from_language_model.rooms import Rooms
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.sources_tried import share_gone, try_sources
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the noise from which on the part that makes it is tried.
TRIED_SHARE = 0.4
#: Rows of the output layer that are looked at: where none differs, it is not quantized.
_ROWS_OF_HEAD = 64


def try_parts(
    run: Run, sides: tuple[WeightValues, WeightValues], found: LanguageFacts, rooms: Rooms, progress: Progress
) -> LanguageFacts:
    """The facts with what is left of the divergence where a part of the model is float, or scales are others.

    Args:
        run: Both models, whose blocks were run; the states of the quantized one are overwritten.
        sides: Weights of the float and of the quantized model.
        found: What is known without trials.
        rooms: Places for the hidden states; trials that are finished in their work are not made again.
        progress: Called after every block that is run again.

    Raises:
        ModelError: See ``run_blocks``.
    """
    work, skeleton = rooms.work, run.skeleton

    def gain_of_embedding() -> float | None:
        mixed = MixedValues(sides[1], sides[0], f"{skeleton.name_of(skeleton.embedding)}.")
        run_alone(skeleton, mixed, run.texts, rooms, run.simulation, progress, step="embedding_blocks")
        # Tied, both are one tensor, and it is mended in both places.
        is_tied = bool(getattr(skeleton.model.config, "tie_word_embeddings", False))
        return _gain(run, found, with_float_head=is_tied)

    def divergence_of_mended() -> float:
        mixed = MixedValues(sides[1], sides[0], f"{found.worst_block}.")
        worst = [block.name for block in found.blocks].index(found.worst_block or "")
        first = rooms.first_of_trial(worst)
        run_alone(skeleton, mixed, run.texts, rooms, run.simulation, progress, step="worst_blocks", first=first)
        return float(run.score().divergence.mean())

    update: dict[str, float | None] = {}
    if _is_changed(run):
        update["head_gain"] = work.once("head_gain", lambda: _gain(run, found, with_float_head=True))
    if (found.embedding_share or 0.0) > TRIED_SHARE:
        update["embedding_gain"] = work.once("embedding_gain", gain_of_embedding)
    update |= try_sources(run, sides[1], found, rooms, progress)
    if (found.worst_block_share or 0.0) > TRIED_SHARE:
        mended = work.once("kl_mended", divergence_of_mended)
        update |= {"kl_mended": mended, "worst_block_gain": share_gone(found.kl_mean, mended)}
    return found.model_copy(update=update)


def _gain(run: Run, found: LanguageFacts, *, with_float_head: bool) -> float | None:
    """Share of the divergence that the states as they are now take away."""
    heads = (run.heads[0], run.heads[0]) if with_float_head else run.heads
    return share_gone(found.kl_mean, float(run.score(heads).divergence.mean()))


def _is_changed(run: Run) -> bool:
    """The output layers differ, by their first rows."""
    rows = slice(0, min(_ROWS_OF_HEAD, run.skeleton.head.weight.shape[0]))
    ours, theirs = (head(rows)[0].numpy() for head in run.heads)
    return not np.array_equal(ours, theirs)
