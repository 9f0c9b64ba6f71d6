"""The models between float and quantized that a toolchain leaves behind, run on the same validation inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.measure.models import Array, Models, Network
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.outputs import Outputs
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.engine.case.output_comparison import Comparison
from quantmedic.engine.case.records import StageRecord
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError

#: Samples on which the stages are compared: enough to see a jump, at a bounded cost.
STAGE_SAMPLES = 256
_HELP = "give the stages in their order: --stage original=float.onnx --stage quantized=int8.onnx"


@dataclass(frozen=True)
class Stage:
    """One model under the name that the user gave it."""

    name: str
    network: Network

    @property
    def record(self) -> StageRecord:
        return StageRecord(name=self.name, is_quantized=self.network.graph.is_quantized)


def open_stages(
    stages: Sequence[tuple[str, str | Path]], models: Models, open_network: Callable[[Path], Network]
) -> list[Stage]:
    """Read the models and check that they take the same inputs.

    Args:
        stages: Names and paths in the order of the toolchain.
        models: The pair whose float model has the inputs that the data sets supply.
        open_network: Reads one model; raises ``ModelError`` where that fails.

    Raises:
        ModelError: A model cannot be read or takes other inputs; names the stage.
        DataError: There is only one stage, or two have one name.
    """
    names = [name for name, _ in stages]
    if len(names) == 1:
        raise DataError("one stage alone cannot be compared", where=f"--stage {names[0]}", help=_HELP)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError("two stages have one name", where=f"--stage {twice}", help=_HELP)
    return [_open_stage(name, open_network(Path(path).expanduser()), models) for name, path in stages]


def _open_stage(name: str, network: Network, models: Models) -> Stage:
    own, wanted = input_specs(network.graph), models.input_specs
    named, others = ({spec.name: spec.shape for spec in specs} for specs in (own, wanted))
    if named != others and [len(spec.shape) for spec in own] != [len(spec.shape) for spec in wanted]:
        raise ModelError(
            f"the model of stage {name} takes other inputs than the float model",
            where=[
                f"{network.graph.path.name}  {_describe_inputs(own)}",
                f"{models.float_graph.path.name}  {_describe_inputs(wanted)}",
            ],
            help="give models that take the validation inputs as they are",
        )
    return Stage(name, network)


def _describe_inputs(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{spec.name} {['?' if side is None else side for side in spec.shape]}" for spec in specs)


def compare_stages(
    stages: Sequence[Stage],
    dataset: Dataset,
    outputs: Outputs,
    options: Options,
    metric: Metric | None,
    progress: Progress,
) -> dict[str, Comparison]:
    """Run every stage on the first samples of a data set; compare it with the first stage and with the one before.

    Args:
        stages: What ``open_stages`` returned.
        dataset: The validation set.
        outputs: Compares outputs, and names those of the float model, by which the stages' outputs are ordered.
        options: How the set was measured.
        metric: Task metric, where the set is labelled; of stages only means over the samples are measured.
        progress: Called with ``stages``, the samples done and their number.

    Returns:
        ``stage.K.O`` and ``step.K.O`` for stage K and output O; see ``SetStatistics``.

    Raises:
        ModelError: A stage cannot be loaded or fails on the data.
    """
    names = outputs.names
    runners = [_runner(stage, names, options.threads) for stage in stages]
    total = min(dataset.reads(options.samples) or STAGE_SAMPLES, STAGE_SAMPLES)
    found: dict[str, Comparison] = {}
    done = 0
    for batch in dataset.batches(options.batch_size or 1, limit=min(options.samples or STAGE_SAMPLES, STAGE_SAMPLES)):
        seen = [run(batch) for run in runners]
        new: dict[str, Comparison] = {}
        for k, own in enumerate(seen):
            new |= outputs.of_stage(f"stage.{k}", seen[0], own)
            key = f"stage.{k}.0"
            if metric is not None and metric.kind.is_mean and batch.labels is not None and key in new:
                labelled = dict(zip(names, own, strict=False))
                new[key] = new[key].with_metric(metric.tally(labelled, batch.labels).values[:, 0])
        for k, (before, after) in enumerate(pairwise(seen), 1):
            if k > 1:
                new |= outputs.of_stage(f"step.{k}", before, after)
        found = {key: found[key].merge(value) if key in found else value for key, value in new.items()}
        done += batch.samples
        progress("stages", done, total)
    _refuse_incomparable(stages, found)
    return found


def _runner(stage: Stage, names: Sequence[str], threads: int) -> Callable[[Batch], list[Array]]:
    """Runs a stage; its outputs are in the float model's order where they have its names, else in their own."""
    own = stage.network.graph.outputs
    ordered = [name for name in names if name in own] if set(names) <= set(own) else list(own)
    try:
        return stage.network.open(ordered, threads)
    except QuantmedicError as error:
        raise ModelError(
            f"the model of stage {stage.name} cannot be run",
            where=error.where,
            help="leave this stage out: models with operators of a vendor's own run in his tools only",
        ) from error


def _refuse_incomparable(stages: Sequence[Stage], found: Mapping[str, Comparison]) -> None:
    for k, stage in enumerate(stages):
        if not any(key.startswith(f"stage.{k}.") for key in found):
            raise ModelError(
                f"no output of stage {stage.name} has the shape of the first stage's",
                where=f"{stage.network.graph.path.name}  {', '.join(stage.network.graph.outputs) or 'no outputs'}",
                help="give models that end in the same outputs",
            )
