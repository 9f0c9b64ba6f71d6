"""Denylists on one calibration: the quantized model with these layers in float, all ranges as they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError, QuantmedicError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.debugger import DenylistOutcome
from quantmedic.trials.bench import Bench, Measured
from quantmedic.trials.edit import edit
from quantmedic.trials.fallback import MAX_SAMPLES, Group, groups_of
from quantmedic.trials.sensitivity import left_in_float, units_of
from quantmedic.trials.split import read_pool, samples_of

#: What the model as it is and the float model are called in the table.
AS_IT_IS, FLOAT = "nothing in float", "float model"


def try_denylists(
    models: Models,
    dataset: Dataset,
    case: Case,
    lists: Mapping[str, Sequence[str]],
    *,
    metric: Metric | None,
    samples: int | None,
    threads: int,
) -> tuple[DenylistOutcome, ...]:
    """The float model, the quantized one as it is, and with each list of activations and their layers in float.

    Args:
        models: Models that can be edited.
        dataset: Where the samples come from.
        case: What ``collect`` found out about the models; a few samples will do.
        lists: Names of output tensors in the float model, by the name of the list.
        metric: Task metric of labelled data.
        samples: Samples of one evaluation; up to 256 if None.
        threads: Processor threads.

    Raises:
        DataError: A name is not that of a quantized activation, or the data do not fit.
        ModelError: A model fails, or the network cannot be simulated.
    """
    network = models.simulate(case, threads)
    groups = groups_of(case.record, units_of(case.record, network))
    by_name = {case.record.tensors[i].float_name: group for group in groups for i in group.tensors}
    chosen = {name: _groups_of_names(names, by_name, name) for name, names in lists.items()}
    wanted = samples or MAX_SAMPLES
    batches = read_pool(dataset, dataset.samples or wanted, samples, wanted, 0)
    labelled = metric if dataset.labelled else None
    bench = Bench(
        models,
        batches,
        metric=labelled,
        classes=case.has_classes,
        threads=threads,
        whole=True,
        joints=recorded_joints(case.record),
    )
    count = samples_of(batches)

    def outcomes() -> Iterator[DenylistOutcome]:
        if labelled is not None and bench.float_metric is not None:
            yield DenylistOutcome(name=FLOAT, samples=count, metric=labelled.aggregate(bench.float_metric))
        yield _outcome(AS_IT_IS, (), bench.before, labelled, count)
        for name, own in chosen.items():
            layers = tuple(group.name for group in own)
            try:
                measured = bench.measure(edit(models, case, _in_float(own, network.weighted)))
            except QuantmedicError as error:
                yield DenylistOutcome(name=name, layers=layers, samples=count, failed=error.message)
                continue
            yield _outcome(name, layers, measured, labelled, count)

    return tuple(outcomes())


def _groups_of_names(names: Sequence[str], by_name: Mapping[str, Group], title: str) -> list[Group]:
    for name in names:
        if name not in by_name:
            raise DataError(
                "a denylist names no quantized activation",
                where=f"{'' if name == title else f'{title}: '}{name}{did_you_mean(name, by_name)}",
                help="names are those of the column tensor_name, whole",
            )
    return list({id(by_name[name]): by_name[name] for name in names}.values())


def _in_float(groups: Sequence[Group], weighted: frozenset[int]) -> Change:
    """These groups without quantizers; the constants of operators without weights count as biases."""
    change = left_in_float(unit for group in groups for unit in group.units)
    forms = {k: form for k, form in change.weights.items() if k in weighted}
    return replace(change, weights=forms)


def _outcome(
    name: str, layers: tuple[str, ...], measured: Measured, metric: Metric | None, samples: int
) -> DenylistOutcome:
    assert measured.worst is not None
    return DenylistOutcome(
        name=name,
        layers=layers,
        samples=samples,
        sqnr_db=measured.worst.sqnr_db,
        agreement=measured.agreement,
        metric=metric.aggregate(measured.metric) if metric is not None and measured.metric is not None else None,
    )
