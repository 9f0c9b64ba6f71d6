"""Dumps of devices and their tools as an extension."""

from functools import partial

from quantmedic.collectors.from_device.device_departures import compare_with_device
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.matched_tensors import match_names, read_names
from quantmedic.collectors.measure.device_tensors import CompareDump, DeviceTensors
from quantmedic.collectors.measure.models import Models


class _Dumps:
    """Dumps of all forms that are known here; one that is not is refused when it is opened."""

    def recognizes(self, source: object) -> bool:
        """Nothing surely: some forms are folders of plain arrays."""
        return False

    def takes_rest(self, source: object) -> bool:
        """Everything."""
        return True

    def open(self, source: object, names: object, models: Models) -> CompareDump:
        """Find the tensors of a dump in the models."""
        known = read_names(names)
        return partial(compare_with_device, match_names(open_dump(source), models, known))


DUMPS: DeviceTensors = _Dumps()
