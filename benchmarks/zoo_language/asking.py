"""One case: both checkpoints are written, quantmedic is asked without and with texts, and its answers are kept."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from zoo.protocol.row import Cause, Said
from zoo.protocol.scores import place

import quantmedic
from quantmedic.collectors.from_language_model.checkpoint_case import with_language
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import QuantmedicError

from .cases import FELT_GROWTH, HEALTHY_GROWTH, Spec, built
from .networks import Network
from .texts import drawn_texts, held_out_bytes

TEXTS, LENGTH = 16, 96


@dataclass(frozen=True)
class Result:
    """Both answers to a case, and what it does to the perplexity.

    Attributes:
        spec: The case.
        plain: Without texts.
        told: With texts.
        growth: Share by which the perplexity grows; None where it was not measured, infinite where it is no number.
        divergence: Nats per token.
    """

    spec: Spec
    plain: Said
    told: Said
    growth: float | None = None
    divergence: float | None = None

    @property
    def answers(self) -> tuple[Said, Said]:
        return self.plain, self.told

    @property
    def counts(self) -> bool:
        """It is a fault that is felt or that is one of the file, or a control that is healthy."""
        if self.spec.fault is None:
            return self.growth is not None and self.growth <= HEALTHY_GROWTH
        return not self.spec.fault.is_felt or self.growth is None or self.growth >= FELT_GROWTH

    def place(self, answer: Said) -> int | None:
        """Place of the first right cause, from 1."""
        fault = self.spec.fault
        if fault is None:
            return None
        if answer.error:
            return 1 if fault.error and fault.error in answer.error else None
        return place(fault.expected, answer.names)


@dataclass
class Asker:
    """Asks case after case of networks; with ``keep`` measurements are kept, to be judged again."""

    keep: Path | None = None
    is_quick: bool = False

    def ask(self, spec: Spec, network: Network) -> Result:
        """Both answers.

        Raises:
            Inapplicable: The network has no place for it.
        """
        kept = None if self.keep is None else self.keep / spec.name.replace("/", "-")
        if kept is not None and self.is_quick and (kept / "told.json").is_file():
            return self._judged(spec, kept)
        patient = built(spec, network)
        with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
            folder = kept or Path(made)
            paths = patient.written(Path(made))
            if spec.kind == "not-quantized":
                shutil.rmtree(paths[1])
                shutil.copytree(paths[0], paths[1])
            self._measure(paths, folder, spec.seed)
            return self._judged(spec, folder)

    def _measure(self, paths: tuple[Path, Path], folder: Path, seed: int) -> None:
        """Leave both cases, or why there are none, in a folder."""
        shutil.rmtree(folder / "cases", ignore_errors=True)
        (folder / "cases").mkdir(parents=True)
        texts = folder / "texts.npz"
        np.savez(texts, ids=drawn_texts(held_out_bytes(), TEXTS, LENGTH, seed))
        errors = {"plain": "", "told": ""}
        try:
            plain = quantmedic.collect(*paths, threads=1, weights_only=True)
            quantmedic.save_case(plain, folder / "cases/plain.case")
        except QuantmedicError as error:
            errors = dict.fromkeys(errors, str(error))
        else:
            try:
                told = with_language(plain, paths, TextRun(texts, threads=1))
                quantmedic.save_case(told, folder / "cases/told.case")
            except QuantmedicError as error:
                errors["told"] = str(error)
        (folder / "told.json").write_text(json.dumps(errors))

    def _judged(self, spec: Spec, folder: Path) -> Result:
        errors = json.loads((folder / "told.json").read_text())
        found: dict[str, Said] = {}
        figures: dict[str, float | None] = {}
        for which, error in errors.items():
            if error:
                found[which] = Said(error=error)
                continue
            diagnosis = quantmedic.judge(quantmedic.load_case(folder / f"cases/{which}.case"))
            causes = tuple(Cause(cause.cause, cause.severity) for cause in diagnosis.causes)
            found[which] = Said(diagnosis.verdict, causes)
            if which == "told":
                figures = _figures(diagnosis)
        return Result(spec, found["plain"], found["told"], **figures)


def _figures(diagnosis: Diagnosis) -> dict[str, float | None]:
    language, metric = diagnosis.model.language, diagnosis.model.metric
    if language.nonfinite_tokens:
        return {"growth": float("inf"), "divergence": None}
    if metric.float_value is None or metric.quantized_value is None:
        return {}
    return {"growth": metric.quantized_value / metric.float_value - 1, "divergence": language.kl_mean}
