"""Cases built and asked, network by network: each network in a process of its own, which goes when it is done."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import quantmedic
from quantmedic.api.options import Prove
from quantmedic.cluster.connection import connect
from quantmedic.cluster.units import RETRIES
from quantmedic.engine.rules.rulebase import RuleBase

from .cases import Built, Spec, build
from .protocol.against import ask_other
from .verdict import Answer, ask

Found = tuple[Built, Answer | None]


@dataclass(frozen=True)
class Asked:
    """What is asked of every case; see ``ask``.

    Attributes:
        against: Checkout of another version, which is asked too.
        build_only: Ask nobody.
    """

    quick: bool = False
    prove: Prove = None
    follow: bool = False
    fix: float | None = None
    against: Path | None = None
    build_only: bool = False


def results(specs: list[Spec], root: Path, jobs: int, **asked: Any) -> Iterator[Found]:
    """``ask_all`` with the attributes of ``Asked`` as arguments."""
    return ask_all(specs, root, jobs, Asked(**asked))


def ask_all(specs: list[Spec], root: Path, jobs: int, asked: Asked, cluster: str | None = None) -> Iterator[Found]:
    """All cases, built and answered, network by network; by workers of a cluster where one is named."""
    # Doubles are made of singles, which no two processes may make at once: so all of a network stay together.
    ordered = sorted(specs, key=lambda spec: spec.network)
    groups = [list(group) for _, group in groupby(ordered, key=lambda spec: spec.network)]
    if cluster is not None:
        yield from _answered_on(cluster, groups, root, asked)
        return
    if jobs == 1:
        for group in groups:
            yield from answered(group, root, asked)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for found in pool.map(partial(_all_answered, root=root, asked=asked), groups):
            yield from found


def _answered_on(cluster: str, groups: list[list[Spec]], root: Path, asked: Asked) -> Iterator[Found]:
    """The same by workers, which see ``root`` and import this package: those of ``local`` do."""
    with connect(cluster) as client:
        futures = [
            client.submit(_all_answered, group, root, asked, key=f"zoo-{group[0].network}", retries=RETRIES)
            for group in groups
        ]
        for future in futures:
            yield from future.result()


def _all_answered(specs: list[Spec], root: Path, asked: Asked) -> list[Found]:
    return list(answered(specs, root, asked))


def answered(specs: list[Spec], root: Path, asked: Asked) -> Iterator[Found]:
    """Cases of one network."""
    if asked.against is None:
        for spec in specs:
            built = build(spec, root)
            yield built, _answer(built, asked)
        return
    cases = [build(spec, root) for spec in specs]
    others = ask_other([built for built in cases if built.usable], asked.against, asked.prove)
    for built in cases:
        answer = _answer(built, asked)
        if answer is not None:
            answer.against = others[built.spec.name]
        yield built, answer


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
