"""A causal language model of ``transformers`` without its weights: its parts, and how its blocks are called.

The class that ``config.json`` names is built on torch's meta device, where tensors have shapes and no values. Code that
comes with a checkpoint is never run, and nothing is downloaded.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from quantmedic.collectors.data.messages import first_line
from quantmedic.collectors.from_language_model.configuration import (
    Held,
    TooMuchError,
    bounded_building,
    read_configuration,
)
from quantmedic.collectors.from_torch.devices import PROCESSOR
from quantmedic.engine.errors import ModelError, QuantmedicError

_CONFIG = "config.json"
_NEWER = "a newer release of transformers may know it; code that comes with a checkpoint is never run"
#: What stands behind the blocks, by the names that architectures have for it.
_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
#: What a block is called with beside the hidden states.
Call = tuple[tuple[Any, ...], Mapping[str, Any]]
#: Takes token ids ``[1, tokens]``; gives what goes into the first block, and what each block would be called with.
RunFront = Callable[[torch.Tensor], tuple[torch.Tensor, list[Call]]]
#: Beginnings or parts of messages by the logger that writes them: kernels of torchao that were built for other machines
#: or other releases of torch, and its use of a call that torch will drop. All else that is logged is shown.
_EXPECTED = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions "),
    "torch.utils._pytree": ("Calling register_constant() on Enum subclasses is deprecated",),
}


@dataclass(frozen=True)
class Skeleton:
    """The parts of a network.

    Attributes:
        model: All of it.
        base: Without the output layer.
        layers: The blocks.
        norm: Behind the last of them.
        device: Where its parts run.
    """

    model: nn.Module
    base: nn.Module
    layers: nn.ModuleList
    norm: nn.Module
    device: torch.device

    @property
    def embedding(self) -> nn.Embedding:
        """Rows of it stand for tokens."""
        return cast("nn.Embedding", cast("Any", self.model).get_input_embeddings())

    @property
    def head(self) -> nn.Linear:
        """Makes logits of what the norm hands on."""
        return cast("nn.Linear", cast("Any", self.model).get_output_embeddings())

    @property
    def is_tied(self) -> bool:
        """The output layer has the weights of the embedding."""
        return bool(getattr(self.model.config, "tie_word_embeddings", False))

    def name_of(self, part: nn.Module) -> str:
        """The name of a part, with which those of its parameters begin."""
        return next(name for name, module in self.model.named_modules() if module is part)

    def front(self) -> Iterator[nn.Module]:
        """Parts before the blocks that have parameters, without the embedding of tokens."""
        for part in self.base.children():
            if part not in (self.layers, self.norm, self.embedding) and any(True for _ in part.parameters()):
                yield part


def build_skeleton(folder: Path, held: Held, device: torch.device = PROCESSOR) -> Skeleton:
    """The network that ``config.json`` in a folder describes, with parts that run on a device.

    Args:
        folder: Holds the file.
        held: What the weights hold, which bounds what is built.
        device: Where its parts run.

    Raises:
        ModelError: ``transformers`` is not installed, the config is missing, or it names an architecture that
            ``transformers`` does not have or that is built otherwise than as a list of blocks.
    """
    with without_import_noise(), _told_of(folder):
        transformers = _transformers(folder)
        config = _configuration(transformers, folder, held)
        config.use_cache = False
        config._experts_implementation = "eager"  # one expert after the other, whose inputs can be told apart
        with torch.device("meta"), bounded_building(held):
            # The one that all have, and that takes no kernels from elsewhere.
            model = transformers.AutoModelForCausalLM.from_config(
                config, trust_remote_code=False, attn_implementation="eager"
            )
        return _taken_apart(model.eval(), folder, device)


def _transformers(folder: Path) -> Any:
    """The package, once there is something for it to read."""
    try:
        import transformers  # an optional package that takes seconds
    except ImportError as error:
        raise ModelError(
            "the package transformers is not installed",
            help="pip install 'quantmedic[language]', or leave --tokens out",
        ) from error
    if not (folder / _CONFIG).is_file():
        raise ModelError(
            "no config.json beside the weights, which says what network they are of",
            where=str(folder),
            help="give the folder as save_pretrained wrote it",
        )
    transformers.utils.logging.set_verbosity_error()  # what it thinks of a config is none of the user's business here
    return transformers


def _configuration(transformers: Any, folder: Path, held: Held) -> Any:
    content = read_configuration(folder / _CONFIG, held)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"transformers {transformers.__version__} knows no model_type {str(kind)[:80]!r}")
    return transformers.CONFIG_MAPPING[kind].from_dict(content)


@contextmanager
def _told_of(folder: Path) -> Iterator[None]:
    """Errors of the library, whatever a folder makes it raise, as one of its ``config.json``."""
    try:
        yield
    except (QuantmedicError, torch.OutOfMemoryError):
        raise
    except TooMuchError as error:
        raise _unknown(folder, str(error), "put the config.json there that the weights were saved with") from error
    except Exception as error:
        raise _unknown(folder, first_line(error)[:200]) from error


def _taken_apart(model: nn.Module, folder: Path, device: torch.device) -> Skeleton:
    base = cast("nn.Module", model.base_model)
    lists = [part for part in base.children() if isinstance(part, nn.ModuleList) and len(part)]
    norm = next((getattr(base, name) for name in _NORMS if isinstance(getattr(base, name, None), nn.Module)), None)
    if len(lists) != 1 or norm is None or cast("Any", model).get_output_embeddings() is None:
        raise _unknown(folder, f"{type(model).__name__} is no list of blocks with a norm and an output layer")
    skeleton = Skeleton(model, base, lists[0], norm, device)
    _make_constants(skeleton, folder)
    return skeleton


def _unknown(folder: Path, why: str, help: str = _NEWER) -> ModelError:
    return ModelError(
        "the network cannot be built from its config.json",
        where=[str(folder / _CONFIG), f"cause  {why}"],
        help=f"{help}. Without --tokens the weights alone are compared",
    )


def _make_constants(skeleton: Skeleton, folder: Path) -> None:
    """Give values to what is no parameter and is not stored: rotary frequencies, scales of embeddings."""
    for name, part in list(skeleton.model.named_modules()):
        left = [own for own, value in part.named_buffers(recurse=False) if value.is_meta]
        if not left or not set(left) - set(part.state_dict()):
            continue  # what is stored, such as the corrections of a router, is loaded with the weights
        if hasattr(part, "scalar_embed_scale"):
            part.embed_scale = torch.tensor(part.scalar_embed_scale).to(skeleton.device)
        elif "Rotary" in type(part).__name__ and hasattr(part, "config"):
            parent = skeleton.model.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], type(part)(part.config).to(skeleton.device))
        else:
            raise _unknown(folder, f"constants that are not known: {name}.{left[0]}")


@contextmanager
def recorded_calls(skeleton: Skeleton) -> Iterator[RunFront]:
    """Runs what stands in front of the blocks, and gives what each would be called with.

    The blocks hand on what they get, so that nothing is computed in them.
    """
    found: list[Call] = []
    seen: list[torch.Tensor] = []

    def record(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(hidden)
        found.append((args, kwargs))
        return hidden

    def calls(ids: torch.Tensor) -> tuple[torch.Tensor, list[Call]]:
        found.clear()
        seen.clear()
        try:
            skeleton.base(input_ids=ids, use_cache=False)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever an architecture raises
            raise ModelError(
                "what stands before the blocks cannot be run",
                where=f"cause  {type(error).__name__}: {first_line(error)[:300]}",
                help="does the config.json belong to these weights? without --tokens the weights alone are compared",
            ) from error
        return seen[0], list(found)

    parts = [*skeleton.layers, skeleton.norm]
    try:
        for part in parts:
            part.forward = record if part is not skeleton.norm else torch.nn.Identity().forward
        yield calls
    finally:
        for part in parts:
            del part.forward


@contextmanager
def without_import_noise() -> Iterator[None]:
    """Keep the expected messages from the terminal of somebody who asked for neither package."""
    loggers = [logging.getLogger(name) for name in _EXPECTED]
    for logger in loggers:
        logger.addFilter(_is_of_use)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """Errors always are."""
    known = _EXPECTED.get(record.name, ())
    return record.levelno > logging.WARNING or not any(words in record.getMessage() for words in known)
