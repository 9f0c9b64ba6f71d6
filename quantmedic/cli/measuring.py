"""Measuring from the command line: progress is shown, and Ctrl-C keeps what was measured."""

from dataclasses import replace
from pathlib import Path

import click

from quantmedic.api.cases import unfinished_path, work_folder
from quantmedic.api.collect import collect_pair
from quantmedic.api.options import CollectOptions
from quantmedic.cli.streams import print_line
from quantmedic.cli.terminal import interrupted_status, progress_bars
from quantmedic.collectors.case_file.archive import read_case
from quantmedic.collectors.measure.collect_pair import Interrupted
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.rulebase import RuleBase


def announce(text: str) -> None:
    """A line on stderr: what comes next takes long."""
    print_line(text, err=True)


def keeping_unfinished(options: CollectOptions, output: Path, resume: bool) -> CollectOptions:
    """Unfinished work is kept where the case is to stand, but beside a finished one, which stays until then."""
    beside = unfinished_path(output)
    in_its_place = not (beside.exists() if resume else _is_finished(output))
    return replace(options, checkpoint=output if in_its_place else beside, resume=resume)


def _is_finished(path: Path) -> bool:
    try:
        return all(dataset.complete for dataset in read_case(path).record.datasets.values())
    except QuantmedicError:  # there is none, or nothing that is worth keeping
        return False


def proving_first(options: CollectOptions, toolchain: str | None) -> CollectOptions:
    """Options under which what leads is tried with the toolchain, unless they say what is to be proven."""
    return replace(options, toolchain=toolchain, prove="first" if options.prove is None else options.prove)


def collect_case(float_model: Path, quantized_model: Path, options: CollectOptions, base: RuleBase) -> Case:
    """A measured case; Ctrl-C leaves what was measured in the checkpoint, and exit code 130."""
    checkpoint = options.checkpoint
    try:
        with progress_bars() as progress:
            return collect_pair(float_model, quantized_model, options, rules=base, progress=progress, announce=announce)
    except Interrupted as interrupt:
        if checkpoint is None:
            raise
        seen = " and ".join(f"{d.seen} {role} samples" for role, d in interrupt.case.record.datasets.items())
        print_line(f"interrupted: {checkpoint} holds what {seen} showed", err=True)
        print_line(f"help: add --resume to continue, or judge it: quantmedic diagnose {checkpoint}", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None
    except KeyboardInterrupt:
        if checkpoint is None:
            raise
        work = work_folder(Path(checkpoint))
        if work.is_dir():
            print_line(f"interrupted: {work} holds the blocks that are finished", err=True)
            print_line("help: the same command goes on from there", err=True)
        elif Path(checkpoint).exists():
            raise
        else:
            print_line("interrupted before a sample was measured: there is nothing to resume", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None
