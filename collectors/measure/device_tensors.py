"""Tensors that a device computed: what reads their dumps and holds them against the deployed model."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.extensions import Kind
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.records import Case, DeviceRecord

#: Options that name a dump, and the names of its tensors in the model.
DUMP_OPTION, NAMES_OPTION = "--device-tensors", "--device-names"


class CompareDump(Protocol):
    """Compares a dump whose tensors are known to be of the deployed model."""

    def __call__(
        self, models: Models, case: Case, dataset: Dataset, *, limit: int | None, threads: int
    ) -> tuple[DeviceRecord, Sequence[str]]:
        """What the device computes otherwise than the deployed model here, and notices.

        Args:
            models: Both models.
            case: What was measured of them.
            dataset: The samples that the device was given.
            limit: At most this many of them; None: all.
            threads: Processor threads.

        Raises:
            DataError: The dump does not fit the samples or the tensors.
        """


@runtime_checkable
class DeviceTensors(Protocol):
    """Reads dumps; an entry point of the group ``quantmedic.device_tensors`` gives it."""

    def recognizes(self, source: object) -> bool:
        """Whether a dump, a path or arrays by name, is surely one of its own."""

    def takes_rest(self, source: object) -> bool:
        """Whether it takes a dump that nothing recognizes."""

    def open(self, source: object, names: object, models: Models) -> CompareDump:
        """Find the tensors of a dump in the models; no value is read.

        Args:
            source: What the user gave.
            names: Names in the model by those on the device, or a file of them; None: they are told by themselves.
            models: Both models.

        Raises:
            DataError: It cannot be read, or no tensor is of the model.
        """


DEVICE_TENSORS: Kind[DeviceTensors] = Kind("quantmedic.device_tensors", DeviceTensors)
