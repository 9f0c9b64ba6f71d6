"""Checkpoints and the language models in them as an extension. Weights are compared where torch is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantmedic.collectors.from_checkpoint.compare_checkpoints import collect_checkpoints, open_checkpoints
from quantmedic.collectors.from_checkpoint.containers import is_checkpoint
from quantmedic.collectors.measure.checkpoints import Checkpoints, TextRun
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError


class _Checkpoints:
    """Checkpoints of transformers and llama.cpp; see ``Checkpoints``."""

    def recognizes(self, path: object) -> bool:
        """By name; every folder is taken for one."""
        return isinstance(path, str | Path) and is_checkpoint(Path(path))

    def takes_rest(self, path: object) -> bool:
        """What is none is refused when it is opened."""
        return True

    open = staticmethod(open_checkpoints)
    compare = staticmethod(collect_checkpoints)

    def require_device(self, device: str) -> None:
        """Refuse a device that torch does not have."""
        with _torch_needed():
            from quantmedic.collectors.from_torch.devices import usable_device  # torch is an optional package
        usable_device(device)

    def run_on_texts(self, case: Case, paths: tuple[Path, Path], how: TextRun) -> Case:
        """Run both, block by block."""
        with _torch_needed():
            from quantmedic.collectors.from_language_model.checkpoint_case import (
                with_language,  # torch is an optional package
            )
        return with_language(case, paths, how)


@contextmanager
def _torch_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModelError(
            "the package torch is not installed, which runs language models",
            help="pip install 'quantmedic[language]', or leave --tokens out",
        ) from error


CHECKPOINTS: Checkpoints = _Checkpoints()
