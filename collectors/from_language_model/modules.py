"""Two language models in memory, run whole and as they are: fake quantizers and quantized kernels compute too."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_language_model.block_noise import BlockNoise
from quantmedic.collectors.from_language_model.blocks import (
    OWN_TEXTS,
    Noises,
    Values,
    noise_of_tokens,
    with_shares,
)
from quantmedic.collectors.from_language_model.positions import Means
from quantmedic.collectors.from_language_model.scores import score_logits
from quantmedic.collectors.from_language_model.skeleton import NORMS
from quantmedic.collectors.from_language_model.text_scores import Scores, ScoreSums
from quantmedic.collectors.from_language_model.tokens import Ids
from quantmedic.engine.errors import ModelError

#: Switches of observers, which would learn from the texts.
_OBSERVES = "observer_enabled"


@dataclass(frozen=True)
class ModulePair:
    """Both models, and their blocks where these are found in both.

    Attributes:
        floats: The float model.
        quantized: The quantized one.
        blocks: Names and blocks of both, in order; empty where a model is run without looking into it.
    """

    floats: nn.Module
    quantized: nn.Module
    blocks: Sequence[tuple[str, nn.Module, nn.Module]]

    @classmethod
    def of(cls, floats: nn.Module, quantized: nn.Module) -> "ModulePair":
        """Find the blocks: the list of them in what transformers calls the base of the model."""
        ours, theirs = _blocks_of(floats), _blocks_of(quantized)
        if ours is None or theirs is None or len(ours) != len(theirs):
            return cls(floats, quantized, ())
        names = {id(part): name for name, part in floats.named_modules()}
        rows = [(names[id(a)], a, b) for a, b in zip(ours, theirs, strict=True)]
        return cls(floats, quantized, rows)


@dataclass
class _Seen:
    """What the blocks of one model got and gave for one text."""

    calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = field(default_factory=list)
    outputs: list[Values] = field(default_factory=list)


@dataclass
class _Found:
    """What is gathered over the texts."""

    front: Means
    scores: ScoreSums


def run_modules(pair: ModulePair, texts: Sequence[Ids], progress: Progress) -> tuple[Scores, Noises]:
    """What both models predict of the next tokens, and where the noise is made; no block is named where none is found.

    Args:
        pair: Both models; neither is changed.
        texts: Token ids.
        progress: Called after every text.

    Raises:
        ModelError: A model fails, or gives no logits of every token.
    """
    scores = ScoreSums([len(ids) for ids in texts])
    found, noises = _Found(Means(scores.positions), scores), [BlockNoise.of(scores.positions) for _ in pair.blocks]
    with _at_rest(pair.floats), _at_rest(pair.quantized), torch.no_grad():
        for number, ids in enumerate(texts):
            ours, theirs = (_run_and_look(pair, side, ids) for side in (0, 1))
            found.scores.add(score_logits(ours[0], theirs[0], torch.from_numpy(ids[1:])), [len(ids)])
            _take_noise(pair, noises, found, (ours[1], theirs[1]), is_own=number < OWN_TEXTS)
            progress("texts", number + 1, len(texts))
    facts = [noise.facts(name) for noise, (name, _, _) in zip(noises, pair.blocks, strict=True)]
    return found.scores.scores(), Noises(found.front.overall, with_shares(facts))


def scores_with_float_parts(pair: ModulePair, texts: Sequence[Ids], parts: Sequence[str]) -> Scores | None:
    """Scores with some parts of the float model in the quantized one; None where it does not run with them.

    Args:
        pair: Both models; the parts are put back.
        texts: Token ids.
        parts: Names of the modules, the same in both.

    Raises:
        ModelError: See ``run_modules``.
    """
    plain = ModulePair(pair.floats, pair.quantized, ())
    with _at_rest(pair.floats), _at_rest(pair.quantized), torch.no_grad(), ExitStack() as stack:
        for part in parts:
            stack.enter_context(_with_part(pair.quantized, part, pair.floats.get_submodule(part)))
        try:
            scores = ScoreSums([len(ids) for ids in texts])
            for ids in texts:
                ours, theirs = (_run_and_look(plain, side, ids)[0] for side in (0, 1))
                scores.add(score_logits(ours, theirs, torch.from_numpy(ids[1:])), [len(ids)])
        except ModelError:  # as of another number type: it is not known, then
            return None
    return scores.scores()


def _take_noise(
    pair: ModulePair, noises: Sequence[BlockNoise], found: _Found, seen: tuple[_Seen, _Seen], *, is_own: bool
) -> None:
    """Noise behind each block, and what each makes by itself on float inputs."""
    ours, theirs = seen
    if pair.blocks:
        found.front.add(noise_of_tokens(*(_values(own.calls[0][0][0]) for own in seen)))
    for k, (name, _, block) in enumerate(pair.blocks):
        noises[k].look(ours.outputs[k])
        noises[k].carried.add(noise_of_tokens(ours.outputs[k], theirs.outputs[k]))
        if is_own:
            args, kwargs = theirs.calls[k]
            hidden = ours.calls[k][0][0].to(args[0].device, args[0].dtype)
            noises[k].own.append(
                noise_of_tokens(ours.outputs[k], _call_block(name, block, (hidden, *args[1:]), kwargs))
            )


def _call_block(name: str, block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Values:
    try:
        return _values(block(*args, **kwargs))
    except Exception as error:  # whatever a module raises
        raise ModelError(
            "a block of the quantized model cannot be run alone", where=[name, _cause(error)], help="report this"
        ) from error


def _run_and_look(pair: ModulePair, side: int, ids: Ids) -> tuple[torch.Tensor, _Seen]:
    """Logits of one model for one text, ``[tokens, vocabulary]``, and what its blocks got and gave."""
    seen, model = _Seen(), (pair.floats, pair.quantized)[side]

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        hidden = args if args else (kwargs.pop("hidden_states"),)
        seen.calls.append((hidden, kwargs))
        seen.outputs.append(_values(output))

    with ExitStack() as stack:
        for _, *both in pair.blocks:
            handle = both[side].register_forward_hook(record, with_kwargs=True)
            stack.callback(handle.remove)
        return _logits(model, ids), seen


def _logits(model: nn.Module, ids: Ids) -> torch.Tensor:
    device = next((value.device for value in model.parameters()), torch.device("cpu"))
    tokens = torch.from_numpy(ids)[None].to(device)
    options = {"use_cache": False} if hasattr(model, "config") else {}
    try:
        given = model(tokens, **options)
    except Exception as error:  # whatever a module raises
        raise ModelError(
            "a language model cannot be run on token ids",
            where=[type(model).__name__, _cause(error)],
            help="modules are called with token ids [1, tokens] and give logits, as those of transformers do",
        ) from error
    logits = getattr(given, "logits", given[0] if isinstance(given, tuple | list) else given)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.shape[1] != len(ids):
        raise ModelError(
            "a module gives no logits of every token",
            where=[type(model).__name__, f"shape {list(getattr(logits, 'shape', []))}"],
            help="give a causal language model, such as AutoModelForCausalLM of transformers",
        )
    return logits[0].cpu()


def _values(output: Any) -> Values:
    """Hidden states of a block as float32, ``[tokens, width]``."""
    hidden = output[0] if isinstance(output, tuple) else output
    return cast("Values", hidden[0].to("cpu", torch.float32).numpy())


def _blocks_of(model: nn.Module) -> nn.ModuleList | None:
    """The one list of blocks in the base of a model, beside its last norm."""
    base = getattr(model, "base_model", None)
    if not isinstance(base, nn.Module):
        return None
    lists = [part for part in base.children() if isinstance(part, nn.ModuleList) and len(part)]
    has_norm = any(isinstance(getattr(base, name, None), nn.Module) for name in NORMS)
    return lists[0] if len(lists) == 1 and has_norm else None


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """A model as it predicts: nothing is dropped out, and no observer learns."""
    training = [part for part in model.modules() if part.training]
    watching = [own for part in model.modules() if isinstance(own := getattr(part, _OBSERVES, None), torch.Tensor)]
    before = [own.clone() for own in watching]
    try:
        for part in training:
            part.training = False
        for own in watching:
            own.zero_()
        yield
    finally:
        for part in training:
            part.training = True
        for own, value in zip(watching, before, strict=True):
            own.copy_(value)


@contextmanager
def _with_part(model: nn.Module, name: str, other: nn.Module) -> Iterator[None]:
    """A model with another part in this place."""
    parent, _, own = name.rpartition(".")
    holder = model.get_submodule(parent)
    before = getattr(holder, own)
    setattr(holder, own, other)
    try:
        yield
    finally:
        setattr(holder, own, before)


def _cause(error: Exception) -> str:
    return f"cause  {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
