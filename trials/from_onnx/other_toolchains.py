"""Prescriptions of NNCF and Intel Neural Compressor for ONNX models, run in a process of their own."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.measure.models import Models
from quantmedic.trials.from_onnx.made import Made, make

#: The stored batches, read anew in each pass.
_BATCHES = """
import pathlib as _pathlib
import numpy as _numpy

class _StoredBatches:
    batch_size = 1

    def __init__(self):
        self.paths = sorted(_pathlib.Path("calibration").glob("*.npz"))

    def __len__(self):
        return len(self.paths)

    def feeds(self):
        for path in self.paths:
            with _numpy.load(path) as stored:
                yield {name.removeprefix("input "): stored[name] for name in stored.files}
"""
_DATASET = f"""{_BATCHES}
import nncf as _nncf

class _Feeds(_StoredBatches):
    def __iter__(self):
        return self.feeds()

dataset = _nncf.Dataset(_Feeds())
"""
#: A loader yields the inputs of a batch, one array or one per input, and labels, which nothing reads.
_LOADER = f"""{_BATCHES}
class _Loader(_StoredBatches):
    def __iter__(self):
        for feed in self.feeds():
            yield (next(iter(feed.values())) if len(feed) == 1 else tuple(feed.values())), 0

dataloader = _Loader()
"""


@dataclass(frozen=True)
class _Toolchain:
    """A toolchain that reads ``float.onnx`` and writes ``int8.onnx``; see ``trials.execute.Executor``."""

    toolchain: str
    package: str
    supplies: frozenset[str]
    prelude: str
    before: int | None = None
    """First major version whose calls are others."""

    def version(self) -> str | None:
        """Version that is installed; None without one."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def missing(self) -> str | None:
        """Its package is not installed, or of another version."""
        found = self.version()
        if found is None:
            return f"the package {self.package} is not installed"
        if self.before is not None and int(found.partition(".")[0]) >= self.before:
            return f"{self.package} {found} has other calls; version {self.before - 1} quantizes ONNX models"
        return None

    def execute(self, models: Models, code: str, calibration: Iterable[Batch], deadline: float | None) -> Made:
        """Run the text in an empty folder, beside the float model and the batches."""
        return make(models, code, self.prelude, calibration, deadline)


NNCF = _Toolchain("NNCF", "nncf", frozenset({"dataset"}), _DATASET)
NEURAL_COMPRESSOR = _Toolchain(
    "Intel Neural Compressor", "neural-compressor", frozenset({"dataloader"}), _LOADER, before=3
)
EXECUTORS = (NNCF, NEURAL_COMPRESSOR)
