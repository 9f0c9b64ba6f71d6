"""Option groups: what a user may set for a run. The public functions and the command line share them.

Nothing here is slow to import, so that the command line can build the groups before it loads a runtime.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from quantmedic.api.notebooks import Watching
from quantmedic.engine.case.facts import Role

if TYPE_CHECKING:
    from quantmedic.collectors.data.preprocessing import Preprocessing

#: Path of a model file, ``module:function`` that returns a model, or a ``torch.nn.Module``.
ModelSource = object
#: Path of an ``.npz`` file or a folder, ``module:function``, an array, a mapping of input names to arrays, or batches.
DataSource = object
#: Path of an ``.npz`` or ``.npy`` file, an array, or a mapping of output names to arrays.
OutputSource = object
#: Path of a folder or an ``.npz``, or a mapping of names of tensors to arrays.
TensorSource = object
#: Path of a file of texts or token ids, an array of ids ``[texts, tokens]``, or a list with one array per text.
TokenSource = object
#: How much of each tensor is measured.
MeasuringMode = Literal["exact", "fast"]
#: Models on the way from float to quantized by name, in the order of the toolchain.
Stages = Mapping[str, str | Path] | Sequence[tuple[str, str | Path]]
#: Trials of remedies where no time is given: as many runs as two cores make in about so many seconds.
DEFAULT_BUDGET = 60.0
#: What leads is tried in about as many runs as measuring took, but no less than two cores make in so many seconds.
FIRST_SECONDS = 10.0
#: Environment variable that leaves this out wherever nothing else is asked.
NO_PROVE = "QUANTMEDIC_NO_PROVE"


@dataclass(frozen=True)
class DataOptions:
    """The data that both models are run on, and the metric that their outputs are judged by."""

    representative: DataSource | None = None
    validation: DataSource | None = None
    labels: str | Path | None = None
    samples: int | None = None
    preprocessing: "Mapping[Role, Preprocessing]" = field(default_factory=dict)
    metric: str | None = None
    metric_direction: str | None = None
    metric_output: str | None = None
    metric_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> dict[Role, DataSource]:
        """The data sets that were given, by role."""
        sources: dict[Role, DataSource] = {}
        if self.representative is not None:
            sources["representative"] = self.representative
        if self.validation is not None:
            sources["validation"] = self.validation
        return sources

    @property
    def evaluation(self) -> tuple[Role, DataSource] | None:
        """The one data set of functions that read one: the evaluation data, else the calibration data."""
        return next(reversed(self.sources.items()), None)


@dataclass(frozen=True)
class TextOptions:
    """The texts that language models are run on, and how many tokens of each; None is 512."""

    tokens: TokenSource | None = None
    text_length: int | None = None


@dataclass(frozen=True)
class MeasuringOptions:
    """How models are run and what is measured.

    ``timeout`` is in seconds and limits each run of a model; 0 is no limit, None the usual one (``RUN_SECONDS``).
    """

    mode: MeasuringMode = "exact"
    batch_size: int | None = None
    threads: int | None = None
    seed: int = 0
    memory: int | None = None
    device: str | None = None
    operator_error: bool = False
    step_error: bool = False
    thumbnails: bool = True
    profile: bool = False
    attribution: bool = True
    timeout: float | None = None


@dataclass(frozen=True)
class ReferenceOptions:
    """What is known from elsewhere: outputs of the training framework and the device, models in between."""

    reference_outputs: OutputSource | None = None
    device_outputs: OutputSource | None = None
    device_tensors: TensorSource | None = None
    device_names: str | Path | Mapping[str, str] | None = None
    expected_float_metric: float | None = None
    expected_quantized_metric: float | None = None
    stages: Stages = ()


@dataclass(frozen=True)
class ToolchainOptions:
    """What the toolchain was configured with and what it printed."""

    toolchain_logs: Sequence[str | Path] = ()
    mct_log: str | Path | None = None
    settings_files: Sequence[str | Path] = ()
    core_config: object | None = None


#: How much is tried: seconds, what every machine tries, or only what leads.
Prove = float | bool | Literal["first"] | None


@dataclass(frozen=True)
class ProofOptions:
    """Trials of remedies, and prescriptions run as printed.

    Attributes:
        prove: Seconds for them; True: as much as is tried on every machine. ``first``: only what leads, in about as
            many runs as measuring took. None and False: nothing, unless ``write_fixed`` asks for it.
        write_fixed: File for the repaired model.
        toolchain: Whose prescriptions are run; None: the one that the quantized model carries marks of.
    """

    prove: Prove = None
    write_fixed: str | Path | None = None
    toolchain: str | None = None

    def __post_init__(self) -> None:
        """Refuse a time in which nothing can be tried.

        Raises:
            ValueError: The seconds are not more than 0.
        """
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"prove is {self.prove!r}: give seconds above 0, True for the default, or False for none")

    @property
    def budget(self) -> float | None:
        """Seconds for all trials, counted ones unless `is_timed`; None where none are wanted, or only the first."""
        if self.is_timed and self.prove is not None:
            return float(self.prove)
        return DEFAULT_BUDGET if self.prove is True or self.write_fixed is not None else None

    @property
    def is_timed(self) -> bool:
        """The user gave a limit in seconds: the one clock that results may depend on."""
        return isinstance(self.prove, float | int) and not isinstance(self.prove, bool)

    @property
    def first(self) -> bool:
        """Only what leads is tried."""
        return self.budget is None and self.prove == "first" and not os.environ.get(NO_PROVE)


@dataclass(frozen=True)
class CheckpointOptions:
    """The file that unfinished work is kept in, and whether to continue from it."""

    checkpoint: str | Path | None = None
    resume: bool = False


@dataclass(frozen=True)
class SpreadOptions:
    """Who works: this process alone, as one of several that know nothing of each other, or workers of a cluster.

    Attributes:
        shard: Measure only this part of the samples, ``3/16``.
        shards: Folder of the cases of all shards, or these: what they measured is not measured again.
        cluster: ``local``, ``local:4``, the address of a Dask scheduler, its ``scheduler.json``, or a
            ``distributed.Client``.
    """

    shard: str | tuple[int, int] | None = None
    shards: str | Path | Sequence[str | Path] | None = None
    cluster: object | None = None


@dataclass(frozen=True)
class RuleOptions:
    """The user's rules and thresholds, and which rules are judged."""

    folders: Sequence[str | Path] = ()
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    thresholds: Sequence[str] = ()
    threshold_file: Path | None = None


@dataclass(frozen=True)
class CollectOptions:
    """All groups of one measurement."""

    data: DataOptions = DataOptions()
    texts: TextOptions = TextOptions()
    measuring: MeasuringOptions = MeasuringOptions()
    references: ReferenceOptions = ReferenceOptions()
    toolchain: ToolchainOptions = ToolchainOptions()
    proof: ProofOptions = ProofOptions()
    saving: CheckpointOptions = CheckpointOptions()
    spread: SpreadOptions = SpreadOptions()
    #: Of torch modules: float layers with their quantized counterparts by name.
    mapping: Mapping[str, str] | None = None

    def for_repaired(self) -> "CollectOptions":
        """The same for a model that was repaired: nothing is tried again, and no checkpoint is overwritten.

        The device has computed the tensors of the first model. What calibrated that did not calibrate this one, so
        validation data judge alone where there are any.
        """
        data = replace(self.data, representative=None) if self.data.validation is not None else self.data
        spread = SpreadOptions(cluster=self.spread.cluster)
        references = replace(self.references, device_tensors=None, device_names=None)
        kept = replace(self, data=data, references=references, spread=spread)
        return replace(kept, proof=ProofOptions(), saving=CheckpointOptions())


class FixArguments(TypedDict, total=False):
    """The keyword arguments that ``fix`` passes on to ``collect``, which says what they mean."""

    labels: str | Path | None
    metric: str | None
    metric_direction: str | None
    metric_output: str | None
    metric_options: Mapping[str, str] | None
    preprocessing: "Preprocessing | Mapping[Role, Preprocessing] | None"
    samples: int | None
    batch_size: int | None
    mode: MeasuringMode
    threads: int | None
    operator_error: bool
    step_error: bool
    seed: int
    checkpoint: str | Path | None
    resume: bool
    reference_outputs: OutputSource | None
    device_outputs: OutputSource | None
    device_tensors: TensorSource | None
    device_names: str | Path | Mapping[str, str] | None
    expected_float_metric: float | None
    expected_quantized_metric: float | None
    stages: Stages
    toolchain_logs: Sequence[str | Path]
    prove: Prove
    write_fixed: str | Path | None
    mapping: Mapping[str, str] | None
    memory: int | None
    device: str | None
    core_config: object | None
    mct_log: str | Path | None
    settings_files: Sequence[str | Path]
    thumbnails: bool
    profile: bool
    attribution: bool
    timeout: float | None
    cluster: object | None


class DiagnoseArguments(FixArguments, total=False):
    """Those that ``diagnose`` passes on."""

    progress: Watching
    tokens: TokenSource | None
    text_length: int | None
    shards: str | Path | Sequence[str | Path] | None


class CollectArguments(DiagnoseArguments, total=False):
    """The keyword arguments of ``collect``."""

    toolchain: str | None
    shard: str | tuple[int, int] | None
