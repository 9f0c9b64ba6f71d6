"""What is measured: two models, their data, how, and what the user gave beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.measure.given_outputs import References
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.stages import Stage
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.engine.case.facts import Role, SearchFacts, SettingsFacts
from quantmedic.engine.case.records import CaseRecord


@dataclass(frozen=True)
class Extras:
    """What the user gave beside models and data.

    Attributes:
        references: Outputs that were computed elsewhere for the validation data, by kind.
        stages: Models between float and quantized.
        expected_float_metric: What the user knows of the float model's accuracy.
        expected_quantized_metric: What another evaluation says of the quantized model's.
        search: What the toolchain's logs tell.
        settings: What the toolchain was told.
        device: Where both models run, as it was asked for.
    """

    references: Mapping[str, References] = field(default_factory=dict)
    stages: Sequence[Stage] = ()
    expected_float_metric: float | None = None
    expected_quantized_metric: float | None = None
    search: SearchFacts | None = None
    settings: SettingsFacts | None = None
    device: str | None = None

    @property
    def run(self) -> dict[str, object]:
        """Entries of the run record for what was given."""
        options = {
            "stages": ", ".join(f"{stage.name}={stage.network.graph.path.name}" for stage in self.stages) or None,
            "device": self.device,
            "expected_float_metric": self.expected_float_metric,
            "expected_quantized_metric": self.expected_quantized_metric,
        }
        outputs: dict[str, object] = {f"{kind}_outputs": r.origin for kind, r in self.references.items()}
        return outputs | {name: value for name, value in options.items() if value is not None}

    def added_to(self, record: CaseRecord) -> CaseRecord:
        """The record with what is known of them."""
        changes: dict[str, object] = {
            "stages": tuple(stage.record for stage in self.stages),
            "compared": {kind: r.origin for kind, r in self.references.items()},
            "recording": next((r.recording for r in self.references.values() if r.recording is not None), None),
            "expected_float_metric": self.expected_float_metric,
            "expected_quantized_metric": self.expected_quantized_metric,
            "run": {**record.run, **self.run},
        }
        told = {"search": self.search, "settings": self.settings}
        if known := {name: facts for name, facts in told.items() if facts is not None}:
            changes["model"] = record.model.model_copy(update=known)
        return record.model_copy(update=changes)


@dataclass(frozen=True)
class Measurement:
    """Two opened models with their data, and how they are measured.

    Attributes:
        models: What ``open_models`` returned.
        datasets: At least one of the two roles.
        options: How to collect.
        metric: Task metric for labelled sets; without one, labels are not used.
        extras: What the user gave beside models and data.
        progress: Called with a stage, the samples done and their number where known.
    """

    models: Models
    datasets: Mapping[Role, Dataset]
    options: Options
    metric: Metric | None = None
    extras: Extras = field(default_factory=Extras)
    progress: Progress = no_progress
