"""Tasks of trials and what comes of them, as plain values that travel."""

from typing import Any

from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid
from quantmedic.trials.bench import Measured
from quantmedic.trials.split import Pool
from quantmedic.trials.tasks import EditTask, Outcome, Task, TextTask

#: Plain values and arrays by name.
Plain = dict[str, Any]


def task_as_plain(task: Task) -> Plain:
    """Numbers and texts alone."""
    if isinstance(task, EditTask):
        return {"fold": task.fold, "change": _change_as_plain(task.change)}
    pool = None if task.pool is None else vars(task.pool)
    return {"fold": task.fold, "toolchain": task.toolchain, "code": task.code, "pool": pool}


def read_task(plain: Plain) -> Task:
    """The task that these values describe."""
    if "change" in plain:
        return EditTask(plain["fold"], _read_change(plain["change"]))
    pool = None if plain["pool"] is None else Pool(**plain["pool"])
    return TextTask(plain["toolchain"], plain["code"], plain["fold"], pool)


def outcome_as_plain(outcome: Outcome) -> Plain:
    """What was measured, by sample."""
    return {**vars(outcome), "found": [_measured_as_plain(each) for each in outcome.found]}


def read_outcome(plain: Plain) -> Outcome:
    """The outcome that these values describe."""
    return Outcome(**{**plain, "found": tuple(_read_measured(each) for each in plain["found"])})


def _change_as_plain(change: Change) -> Plain:
    return {
        "grids": [(i, _grid_as_plain(grid)) for i, grid in change.grids.items()],
        "weights": dict(change.weights),
        "biases": sorted(change.biases),
        "learned": sorted(change.learned),
    }


def _grid_as_plain(grid: AnyGrid | None) -> object:
    if isinstance(grid, ChannelGrid):
        return {"axis": grid.axis, "grids": [_grid_as_plain(own) for own in grid.grids]}
    return None if grid is None else (grid.low, grid.high, grid.step)


def _read_grid(plain: Any) -> AnyGrid | None:
    if isinstance(plain, dict):
        return ChannelGrid(plain["axis"], tuple(Grid(*own) for own in plain["grids"]))
    return None if plain is None else Grid(*plain)


def _read_change(plain: Plain) -> Change:
    grids = {i: _read_grid(grid) for i, grid in plain["grids"]}
    return Change(grids, plain["weights"], frozenset(plain["biases"]), frozenset(plain["learned"]))


def _measured_as_plain(measured: Measured) -> Plain:
    tally = measured.metric
    rows = None if tally is None else {"values": tally.values, "lengths": tally.lengths}
    return {"noise": measured.noise, "agreement": measured.agreement, "metric": rows}


def _read_measured(plain: Plain) -> Measured:
    metric = None if plain["metric"] is None else Tally(**plain["metric"])
    return Measured(plain["noise"], plain["agreement"], metric)
