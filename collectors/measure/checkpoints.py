"""Checkpoints: what compares weights that no front end opens, and runs the language models in them on texts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.extensions import Kind
from quantmedic.engine.case.records import Case

#: What comparing some tensors finds, small enough to travel: layers, and what else there is to say.
Found = dict[str, list[Any]]
#: Compares float tensors of two open checkpoints, by name, with their counterparts, on so many threads.
CompareTensors = Callable[[Sequence[str], int | None], Found]
#: Compares groups of tensors, by name, on other machines; gives what was found by the number of the group.
Elsewhere = Callable[[Sequence[Sequence[str]]], Iterable[tuple[int, Found]]]


@dataclass(frozen=True)
class TextRun:
    """How language models are run on texts.

    Attributes:
        tokens: Texts or token ids.
        length: Tokens that are used of each text; None: 512.
        threads: Processor threads; None: as many as suit.
        device: Where both models run; None: the processor.
        unfinished: Folder that an interrupted run leaves its finished steps in, and goes on from; None: nothing is
            kept.
        progress: Called after every block.
        announce: Called with a line where a run goes on, or begins anew.
    """

    tokens: object
    length: int | None = None
    threads: int | None = None
    device: str | None = None
    unfinished: Path | None = None
    progress: Progress = no_progress
    announce: Announce = no_announcement


@runtime_checkable
class Checkpoints(Protocol):
    """Compares checkpoints; an entry point of the group ``quantmedic.checkpoints`` gives it.

    All methods raise a ``QuantmedicError`` where models or texts cannot be read, do not belong together or cannot be
    run, also for lack of a package.
    """

    def recognizes(self, path: object) -> bool:
        """Whether a file or folder is surely a checkpoint, by its name."""

    def takes_rest(self, path: object) -> bool:
        """Whether it takes what nothing recognizes."""

    def open(self, float_path: Path, quantized_path: Path) -> CompareTensors:
        """Open both, for a worker that compares tensors for ``elsewhere``."""

    def compare(
        self,
        float_path: Path,
        quantized_path: Path,
        *,
        version: str,
        threads: int | None,
        progress: Progress,
        elsewhere: Elsewhere | None = None,
    ) -> Case:
        """Compare the weights, tensor by tensor.

        Args:
            float_path: The float weights.
            quantized_path: The quantized ones.
            version: Version of quantmedic, for the record.
            threads: Processor threads; None: as many as suit.
            progress: Called after every tensor.
            elsewhere: Compares tensors on other machines.
        """

    def require_device(self, device: str) -> None:
        """Refuse a device that cannot run language models here."""

    def run_on_texts(self, case: Case, paths: tuple[Path, Path], how: TextRun) -> Case:
        """The case of two checkpoints, the float one and the quantized one, with what the models in them predict."""


CHECKPOINTS: Kind[Checkpoints] = Kind("quantmedic.checkpoints", Checkpoints)
