"""The smallest set of layers in float that explains a loss, as a repair where those of the causes do not suffice."""

from collections.abc import Callable, Sequence

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.proof import FLOAT_SET
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.fallback import Goal
from quantmedic.engine.diagnosis.fallback import smallest_set
from quantmedic.engine.diagnosis.suspects import Repair
from quantmedic.engine.formulas.change import Targets
from quantmedic.trials.fallback import FallbackTrial, Group

#: A set with a larger share of the layers is not prescribed: hardly anything would be left in int8.
MOST = 1 / 3
NAMED = 4


def open_search(
    models: Models, case: Case, dataset: Dataset, *, least_db: float, threads: int, seed: int
) -> FallbackTrial:
    """The search before its first run.

    Args:
        models: Both models.
        case: What was measured of them.
        dataset: Samples to search on.
        least_db: Output SQNR that explains the loss.
        threads: Processor threads.
        seed: Seed of the search.

    Raises:
        QuantmedicError: The network cannot be simulated.
    """
    goal = Goal(kind="sqnr", limit=least_db)
    return FallbackTrial(models, dataset, case, goal, metric=None, samples=None, threads=threads, seed=seed)


def float_set(search: FallbackTrial, case: Case, seed: int, progress: Callable[[], None]) -> Repair | None:
    """Search for it in the simulated network.

    Args:
        search: See ``open_search``.
        case: What was measured of the models.
        seed: Seed of the search.
        progress: Called after every pass over the samples.

    Returns:
        None where no set is small enough.

    Raises:
        QuantmedicError: The network fails.
    """
    found = smallest_set(
        len(search.groups), search.evaluate, search.probe, seed=seed, progress=lambda found: progress()
    )
    if found.interrupted:
        raise KeyboardInterrupt
    groups = [search.groups[i] for i in sorted(found.best or ())]
    if not groups or len(groups) > MOST * len(search.groups):
        return None
    change = search.change(found.best or frozenset())
    targets = Targets(
        tuple(i for group in groups for i in group.tensors), tuple(k for group in groups for k in group.operators)
    )
    nodes = [name for k in targets.operators for name in case.record.operators[k].float_nodes or ()]
    readers = [name for i in targets.tensors for name in case.record.tensors[i].readers]
    words = _words(groups, len(search.groups))
    return Repair(FLOAT_SET, FLOAT_SET, change, targets, words, tuple(dict.fromkeys([*nodes, *readers])))


def _words(groups: Sequence[Group], layers: int) -> str:
    names = ", ".join(group.name for group in groups[:NAMED])
    more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"{len(groups)} of {layers} layers in float, the fewest found that suffice: {names}{more}"
