"""Quantize a network, run it, and compare its outputs with the float model's: with onnxruntime alone."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.engine.decibels import sqnr_db

from .feeds import Feeds
from .networks import Network
from .tasks import Task

Array = NDArray[Any]


@dataclass(frozen=True)
class Recipe:
    """Settings of ``quantize_static``; ``ranges`` and ``types`` override single tensors."""

    per_channel: bool = True
    activation: str = "QInt8"
    weight: str = "QInt8"
    method: str = "MinMax"
    percentile: float | None = None
    qoperator: bool = False
    symmetric: bool = False
    op_types: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    overrides: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def with_override(self, tensor: str, **values: Any) -> "Recipe":
        return replace(self, overrides={**self.overrides, tensor: [values]})

    def with_range(self, tensor: str, low: float, high: float) -> "Recipe":
        return self.with_override(tensor, rmin=np.float32(low), rmax=np.float32(high))

    def with_ranges(self, ranges: Mapping[str, tuple[float, float]], least: float = 1e-5) -> "Recipe":
        """With lower and upper ends for some tensors; no upper end is below the least."""
        recipe = self
        for tensor, (low, high) in ranges.items():
            recipe = recipe.with_range(tensor, low, max(high, least))
        return recipe

    def with_grid(self, tensor: str, step: float, code: float | None = None) -> "Recipe":
        """With a step for a tensor and the code of 0; by default that of a symmetric grid."""
        zero = self.zero_point if code is None else np.array(code, self.zero_point.dtype)
        return self.with_override(tensor, scale=np.array(step, np.float32), zero_point=zero)

    @property
    def zero_point(self) -> Array:
        """The code of 0 on a symmetric grid of the activations' type."""
        kind = np.dtype(self.activation.removeprefix("Q").lower())
        return np.array(0 if kind.kind == "i" else 2 ** (8 * kind.itemsize - 1), kind)

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"ActivationSymmetric": self.symmetric, **self.extra}
        if self.percentile is not None:
            options |= {"CalibPercentile": self.percentile, "CalibTensorRangeSymmetric": False}
        if self.overrides:
            options["TensorQuantOverrides"] = {k: [dict(v) for v in values] for k, values in self.overrides.items()}
        return options


def equal_batch(network: Network, samples: int) -> int:
    """Size of equal batches: onnxruntime's histogram calibrators fail on a last one of another size."""
    return max(n for n in range(1, min(network.batch, 32) + 1) if samples % n == 0)


def quantize(network: Network, model: onnx.ModelProto, recipe: Recipe, calibration: Array) -> onnx.ModelProto:
    """The quantized model."""
    name, size = model.graph.input[0].name, equal_batch(network, len(calibration))
    feeds = Feeds(network.feed(name, calibration[i : i + size]) for i in range(0, len(calibration), size))
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, str(source))
        op_types = recipe.op_types or network.op_types
        quantize_static(
            str(source),
            str(target),
            feeds,
            quant_format=QuantFormat.QOperator if recipe.qoperator else QuantFormat.QDQ,
            op_types_to_quantize=list(op_types) if op_types else None,
            per_channel=recipe.per_channel,
            activation_type=QuantType[recipe.activation],
            weight_type=QuantType[recipe.weight],
            nodes_to_exclude=list(recipe.exclude),
            calibrate_method=CalibrationMethod[recipe.method],
            extra_options=recipe.options(),
        )
        return onnx.load(str(target))


def run(network: Network, model: onnx.ModelProto, inputs: Array, *, tensors: tuple[str, ...] = ()) -> list[Array]:
    """All outputs (or the named tensors) over all inputs."""
    if tensors:
        shown = onnx.ModelProto()
        shown.CopyFrom(model)
        del shown.graph.output[:]
        shown.graph.output.extend([onnx.ValueInfoProto(name=name) for name in tensors])
        model = shown
    session = make_session(model, Path("network.onnx"), threads=1)
    name = model.graph.input[0].name
    names = list(tensors) or None
    parts = [
        session.run(names, network.feed(name, inputs[i : i + network.batch]))
        for i in range(0, len(inputs), network.batch)
    ]
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


#: Where only noise tells: what a sound network loses at most, and how much more noise than it has is harm.
SOUND_DB, LOST_DB = 12.0, 6.0
#: Noise below this is none.
SILENT_DB = 30.0


@dataclass(frozen=True)
class Standing:
    """How a quantized model does against its float model on the validation inputs.

    Attributes:
        agreement: Share of answers that are those of the float model; None where outputs are no answers.
        float_score: Share of right answers; None where nobody knows the right ones.
        sound_db: SQNR of the sound quantization, where only noise tells.
    """

    sqnr_db: float
    worst_column_db: float
    agreement: float | None
    float_score: float | None
    score: float | None
    proven_drop: bool
    sound_db: float | None = None

    @property
    def hurts(self) -> bool:
        """A proven drop of more than 1.5 points, fewer than nine answers in ten the same, or more noise than signal.

        Where outputs are no answers: clearly more noise than the sound quantization has.
        """
        if self.agreement is None:
            return self.sqnr_db < self._least_db
        drop = (self.float_score or 0.0) - (self.score or 0.0)
        return self.sqnr_db < 0 or self.agreement < 0.9 or (self.proven_drop and drop > 0.015)

    @property
    def _least_db(self) -> float:
        return SOUND_DB if self.sound_db is None else min(self.sound_db, SILENT_DB) - LOST_DB


def compare(task: Task, reference: list[Array], outputs: list[Array], labels: Array | None) -> Standing:
    given, wanted = task.answers(outputs), task.answers(reference)
    score, float_score = (_score(task, answers, labels) for answers in (given, wanted))
    return Standing(
        sqnr_db=pooled_sqnr(reference, outputs),
        worst_column_db=_worst_column(reference, outputs),
        agreement=None if task.same is None else float(task.same(given, wanted).mean()),
        float_score=float_score,
        score=score,
        proven_drop=proves_drop(task, wanted, given, labels),
    )


def _score(task: Task, answers: Array, labels: Array | None) -> float | None:
    return None if task.right is None or labels is None else float(task.right(answers, labels).mean())


def proves_drop(task: Task, before: Array, after: Array, labels: Array | None) -> bool:
    """Whether more samples turned from right to wrong than chance allows."""
    if task.right is None or labels is None:
        return False
    was, is_ = task.right(before, labels), task.right(after, labels)
    return sign_test(int((was & ~is_).sum()), int((is_ & ~was).sum())) < 0.025


def pooled_sqnr(reference: list[Array], outputs: list[Array]) -> float:
    """SQNR of all outputs pooled, in dB, between -30 and 120; NaN counts as -30."""
    signal = sum(float(np.square(x, dtype=np.float64).sum()) for x in reference)
    noise = sum(float(np.square(np.asarray(y, np.float64) - x).sum()) for x, y in zip(reference, outputs, strict=True))
    if not np.isfinite(noise) or signal == 0:
        return -30.0
    return float(np.clip(sqnr_db(signal, noise), -30, 120))


def _worst_column(reference: list[Array], outputs: list[Array]) -> float:
    """The lowest SQNR of a column of the last axis; columns without power are left out."""
    found = [
        pooled_sqnr([x[..., i]], [y[..., i]])
        for x, y in zip(reference, outputs, strict=True)
        if x.ndim > 1 and x.shape[-1] <= 64 and x.shape == y.shape
        for i in range(x.shape[-1])
        if np.square(x[..., i], dtype=np.float64).sum() > 0
    ]
    return min(found, default=pooled_sqnr(reference, outputs))


def sign_test(lost: int, won: int) -> float:
    """One-sided probability of at least so many losses among the samples that changed, if both were as likely."""
    changed = lost + won
    return sum(comb(changed, k) for k in range(lost, changed + 1)) / 2**changed if changed else 1.0
