"""What attribution costs, from calls of progress at known times."""

from pathlib import Path

from zoo.protocol.clock import Clock, read_cost, write_cost
from zoo.protocol.row import Cost


def clock(*calls: tuple[str, float], now: float) -> Clock:
    """A clock that starts at 100 seconds, is called at these, and is asked at the last one."""
    times = iter([100.0, *(100.0 + seconds for _, seconds in calls), 100.0 + now])
    made = Clock(lambda: next(times))
    for stage, _ in calls:
        made(stage, 0, None)
    return made


def test_attribution_ends_where_another_stage_begins() -> None:
    calls = [("validation", 1.0), ("remedies", 2.0), ("loss budget", 2.5), ("remedies", 4.0)]
    assert clock(*calls, now=6.0).cost() == Cost(2.0, 1.5, 4.0)
    assert clock(*calls, ("trials", 5.5), ("trials", 50.0), now=60.0).cost() == Cost(2.0, 1.5, 3.5)


def test_a_healthy_model_costs_only_collecting() -> None:
    assert clock(("validation", 1.0), now=3.0).cost() == Cost(3.0, 0.0, 0.0)


def test_the_cost_of_a_stored_case_is_known_again(tmp_path: Path) -> None:
    case = tmp_path / "abc-def.case"
    assert read_cost(case) is None
    write_cost(case, Cost(1.0, 2.0, 3.0))
    assert read_cost(case) == Cost(1.0, 2.0, 3.0)
