"""Dumps of devices and their tools as an extension."""

from collections.abc import Sequence
from dataclasses import dataclass

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.from_device.device_departures import compare_with_device
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.matched_tensors import MatchedDump, match_names, read_names
from quantmedic.collectors.measure.device_tensors import DeviceTensors
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.records import Case, DeviceRecord


@dataclass(frozen=True)
class _Dump:
    """A matched dump; see ``DeviceDump``."""

    matched: MatchedDump

    def compare(
        self, models: Models, case: Case, dataset: Dataset, *, limit: int | None, threads: int
    ) -> tuple[DeviceRecord, Sequence[str]]:
        """Hold it against the deployed model."""
        return compare_with_device(models, case, self.matched, dataset, limit=limit, threads=threads)


class _Dumps:
    """Dumps of all forms that are known here; one that is not is refused when it is opened."""

    def recognizes(self, source: object) -> bool:
        """Nothing surely: some forms are folders of plain arrays."""
        return False

    def takes_rest(self, source: object) -> bool:
        """Everything."""
        return True

    def open(self, source: object, names: object, models: Models) -> _Dump:
        """Find the tensors of a dump in the models."""
        known = read_names(names)
        return _Dump(match_names(open_dump(source), models, known))


DUMPS: DeviceTensors = _Dumps()
