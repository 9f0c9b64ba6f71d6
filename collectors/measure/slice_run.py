"""Two opened models that are measured on whichever slices are asked for, one after the other."""

from collections.abc import Mapping

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.progress import no_progress
from quantmedic.collectors.measure.collect_pair import begin_run
from quantmedic.collectors.measure.extras import Extras
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case


class SliceRun:
    """What opening and looking at the first batch cost is paid once for many slices."""

    def __init__(
        self,
        models: Models,
        datasets: Mapping[Role, Dataset],
        options: Options,
        version: str,
        metric: Metric | None,
        extras: Extras,
    ) -> None:
        """Look at the first batch; the arguments are those of ``collect``."""
        self._run = begin_run(models, datasets, options, version, metric, no_progress, extras)
        self._slicings = self._run.slicings

    def measure(self, role: Role, number: int) -> Case:
        """The case of one slice.

        Raises:
            DataError: A sample does not fit the model.
            ModelError: A model fails on the data.
        """
        self._run.only({role: self._slicings[role].only(number, number + 1)})
        for _ in self._run.measure():
            pass
        return self._run.case()
