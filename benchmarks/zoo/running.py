"""Cases built and asked, network by network: each network in a process of its own, which goes when it is done."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import quantmedic
from quantmedic.api.options import Prove
from quantmedic.engine.rules.rulebase import RuleBase

from .cases import Built, Spec, build
from .verdict import Answer, ask

Found = tuple[Built, Answer | None]


@dataclass(frozen=True)
class Asked:
    """What is asked of every case; see ``ask``.

    Attributes:
        build_only: Ask nobody.
    """

    quick: bool = False
    prove: Prove = None
    follow: bool = False
    fix: float | None = None
    build_only: bool = False


def ask_all(specs: list[Spec], root: Path, jobs: int, asked: Asked) -> Iterator[Found]:
    """All cases, built and answered, network by network."""
    # Doubles are made of singles, which no two processes may make at once: so all of a network stay together.
    ordered = sorted(specs, key=lambda spec: spec.network)
    groups = [list(group) for _, group in groupby(ordered, key=lambda spec: spec.network)]
    if jobs == 1:
        for group in groups:
            yield from answered(group, root, asked)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(partial(_all_answered, root=root, asked=asked), groups):
            yield from found


def _all_answered(specs: list[Spec], root: Path, asked: Asked) -> list[Found]:
    return list(answered(specs, root, asked))


def answered(specs: list[Spec], root: Path, asked: Asked) -> Iterator[Found]:
    """Cases of one network."""
    for spec in specs:
        built = build(spec, root)
        yield built, _answer(built, asked)


def _answer(built: Built, asked: Asked) -> Answer | None:
    """What costs nothing is only diagnosed: there is nothing to heal."""
    if asked.build_only or not built.usable:
        return None
    if built.is_harmless:
        return ask(built, _rules(), quick=asked.quick)
    return ask(built, _rules(), quick=asked.quick, prove=asked.prove, follow=asked.follow, fix=asked.fix)


@cache
def _rules() -> RuleBase:
    return quantmedic.load_rulebase()
