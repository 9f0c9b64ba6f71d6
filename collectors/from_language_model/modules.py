"""Two language models in memory, run whole and as they are: fake quantizers and quantized kernels compute too."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_language_model.block_noise import BlockNoise
from quantmedic.collectors.from_language_model.blocks import OWN_TEXTS, Noises, Values, noise_of_tokens, with_shares
from quantmedic.collectors.from_language_model.positions import Means
from quantmedic.collectors.from_language_model.routing import Routing, chosen_experts
from quantmedic.collectors.from_language_model.scores import Scores, ScoreSums, score_logits
from quantmedic.collectors.from_language_model.skeleton import NORMS
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

    def name_of(self, part: nn.Module) -> str | None:
        """The name of a part of the float model, where the quantized one has a part of that name too."""
        name = next((name for name, module in self.floats.named_modules() if module is part), None)
        return name if name in dict(self.quantized.named_modules()) else None


@dataclass(frozen=True)
class _Numbers:
    """Where a module computes, and in which numbers."""

    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> "_Numbers | None":
        """Of its first parameter of real numbers; None where it has none."""
        first = next((value for value in module.parameters() if value.is_floating_point()), None)
        return None if first is None else cls(first.device, first.dtype)

    def take(self, value: Any) -> Any:
        """Tensors as such a module takes them, also in lists and dictionaries; anything else as it is."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device, self.dtype) if value.is_floating_point() else value.to(self.device)
        if isinstance(value, dict):
            return {key: self.take(own) for key, own in value.items()}
        if isinstance(value, list | tuple):
            return tuple(map(self.take, value))
        return value


class _Fitted(nn.Module):
    """A part of the float model in a quantized one that computes elsewhere or in other numbers."""

    def __init__(self, part: nn.Module, own: _Numbers, outer: _Numbers) -> None:
        """``own``: of the part; ``outer``: of what it stands in."""
        super().__init__()
        self.part, self._own, self._outer = part, own, outer

    def __getattr__(self, name: str) -> Any:
        """Models ask their blocks what kind of attention they have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("part"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the part, with all tensors moved there and back."""
        return self._outer.take(self.part(*self._own.take(args), **self._own.take(kwargs)))


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
    lengths = [len(ids) for ids in texts]
    scores = ScoreSums(lengths)
    found, noises = _Found(Means(scores.positions), scores), [BlockNoise.of(scores.positions) for _ in pair.blocks]
    routings = _routings(pair, max(lengths))
    with _at_rest(pair.floats), _at_rest(pair.quantized), torch.no_grad():
        for number, ids in enumerate(texts):
            is_own = number < OWN_TEXTS
            ours, theirs = (_run_and_route(pair, side, ids, routings, is_own=is_own) for side in (0, 1))
            found.scores.add(score_logits(ours[0], theirs[0], torch.from_numpy(ids[1:])), [len(ids)])
            _take_noise(pair, noises, found, (ours[1], theirs[1]), is_own=is_own)
            for routing, (_, *both) in zip(routings, pair.blocks, strict=True):
                routing.run_experts(*both)
            progress("texts", number + 1, len(texts))
    facts = [
        noise.facts(name).model_copy(update=routing.facts())
        for noise, routing, (name, _, _) in zip(noises, routings, pair.blocks, strict=True)
    ]
    return found.scores.scores(), Noises(found.front.overall, with_shares(facts))


def scores_with_float_parts(pair: ModulePair, texts: Sequence[Ids], parts: Sequence[str]) -> Scores | None:
    """Scores with some parts of the float model in the quantized one; None where they do not run there.

    Args:
        pair: Both models; the parts are put back.
        texts: Token ids.
        parts: Names of modules, the same in both.

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
        except ModelError:  # as of parts that are called otherwise: it is not known, then
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


def _routings(pair: ModulePair, longest: int) -> list[Routing]:
    """Of each block, with room for the choices of one text; of a block without experts, nothing is seen."""
    chosen = chosen_experts(getattr(pair.floats, "config", None))
    shape = None if chosen is None else (longest, 2 * chosen)
    return [Routing.of(block, None if shape is None else np.empty(shape, np.float32)) for _, block, _ in pair.blocks]


def _run_and_route(
    pair: ModulePair, side: int, ids: Ids, routings: Sequence[Routing], *, is_own: bool
) -> tuple[torch.Tensor, _Seen]:
    """See ``_run_and_look``; what the routers of the blocks choose is taken meanwhile."""
    span = slice(0, len(ids))
    with ExitStack() as stack:
        for routing, (_, *both) in zip(routings, pair.blocks, strict=True):
            seen = (
                routing.seen_quantized(both[1], span) if side else routing.seen_floats(both[0], span, is_sample=is_own)
            )
            stack.enter_context(seen)
        return _run_and_look(pair, side, ids)


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
    return logits[0]


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
    here, there = _Numbers.of(before) or _Numbers.of(model), _Numbers.of(other)
    setattr(holder, own, other if here is None or there is None or here == there else _Fitted(other, there, here))
    try:
        yield
    finally:
        setattr(holder, own, before)


def _cause(error: Exception) -> str:
    return f"cause  {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
