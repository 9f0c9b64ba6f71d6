"""Facts of what comes out of the network: its outputs, its task metric, and comparisons with given outputs."""

from typing import Literal

from pydantic import Field

from quantmedic.engine.case.fact_base import Facts, Role, Words, fact
from quantmedic.engine.case.tensor_facts import TensorFacts

Ending = Literal["Softmax", "Sigmoid"]
ModelName = Literal["float", "quantized"]


class EndingFacts(Facts):
    """A function that one model ends with and the other does not: the one of those tried that explains most."""

    function: Ending | None = fact("operator that the other model's output is put through")
    of: ModelName | None = fact("the model that ends with it")
    sqnr_db: float | None = fact("sqnr_db of the outputs once the other model's went through it", "dB")
    gain_db: float | None = fact("that - sqnr_db of the outputs as they are", "dB")


class AffineFacts(Facts):
    """Line y ≈ slope · x + offset of the quantized model's output y, as it is returned, over the float model's x."""

    slope: float | None = fact("covariance of x and y / variance of x", "ratio")
    offset: float | None = fact("mean of y - slope · mean of x", "value")
    r2: float | None = fact("R²: squared correlation of x and y", "ratio")
    slope_mismatch: float | None = fact("max(|slope|, 1 / |slope|); 1 = equal scales", "ratio")
    offset_over_std: float | None = fact("|offset| / standard deviation of x", "σ")
    gain_db: float | None = fact("what sqnr_db gains where y is put back by that line; about 0 for rounding", "dB")


class OutputOperandFacts(Facts):
    """One part of an output: an operand of the Concat that joins it, or neighbouring columns of one scale."""

    tensor: str | None = fact("name of the operand in the float model; None for columns of one scale")
    columns: str | None = fact("the output's columns that it fills, from 0")
    sqnr_db: float | None = fact("sqnr_db of these columns together", "dB")
    kind: str | None = fact("what it holds in the head of a detector: boxes, objectness, scores, classes or masks")


class OutputColumnFacts(Facts):
    """An output column by column, as it is returned, and by its parts: operands of the Concat that joins them.

    Where no Concat does and 8 bits do not resolve some columns beside the loudest (they have less than 2⁻¹⁶ of its
    power, 48 dB), the parts are those on both sides of the widest gap between the powers. A column counts if it has
    more than that of the loudest column of its part; among scores 1e-2, for those of a class that hardly ever occurs
    are no fault. Scores compete with each other, so that their noise counts together: one of them counts by itself
    where it is lost, with noise of more than half of its power.
    """

    worst_sqnr_db: float | None = fact(
        "lowest sqnr_db of the output as a whole, of its parts and of its columns that count by themselves", "dB"
    )
    worst: str | None = fact("which of them that is; None for the output as a whole")
    dead: int | None = fact(
        "columns that count and are constant in the quantized model although they vary in the float one; where only "
        "operands are judged, all of those that are erased"
    )
    dead_places: str | None = fact("these columns, from 0")
    operands: tuple[OutputOperandFacts, ...] = Field(default=(), description="parts of the output, in order")
    spoiled: bool | None = fact(
        "a column that counts is dead, or one that counts by itself or a part is under quantize_error_sqnr_db"
    )


class OutputFacts(Facts):
    """Scope ``output``: one output of the network."""

    name: str | None = fact("name of the output in the float model")
    tensor: TensorFacts = TensorFacts()
    is_integer: bool | None = fact("the last operation on the way to the output ends on an integer grid")
    step: float | None = fact("step of that grid", "value")
    distinct_levels_worst_column: int | None = fact("codes that the poorest column of the last axis uses", "levels")
    levels: float | None = fact("range width of the float output / step: codes that its range spans", "levels")
    margin_median: float | None = fact("median of top-1 minus top-2 of the float output", "value")
    step_over_margin: float | None = fact("step / margin_median", "ratio")
    tie_share: float | None = fact("share of samples whose two best quantized scores are equal", "share")
    is_codes: bool | None = fact("the quantized model returns integers where the float model returns real values")
    affine: AffineFacts = AffineFacts()
    ending: EndingFacts = EndingFacts()
    columns: OutputColumnFacts = OutputColumnFacts()

    @property
    def worst_sqnr_db(self) -> float | None:
        """The level that the output is judged by: of its worst column or operand, or as a whole."""
        whole, worst = self.tensor.data.accumulated.sqnr_db, self.columns.worst_sqnr_db
        return min((level for level in (whole, worst) if level is not None), default=None)


class MetricFacts(Facts):
    """The task metric of both models on the labelled set; the drop is float minus quantized, worse is positive."""

    name: Words[str | None] = fact("a built-in metric such as top1, map or cer, or module:function")
    higher_is_better: bool | None = fact("direction of the metric")
    dataset: Role | None = fact("data set it was measured on")
    samples: int | None = fact("samples it was measured on")
    float_value: float | None = fact("metric of the float model; a share but for mae, rmse and perplexity", "metric")
    quantized_value: float | None = fact("metric of the quantized model", "metric")
    drop: float | None = fact("float - quantized (sign turned where lower is better)", "metric")
    drop_low: float | None = fact(
        "lower end of the drop's 95 % interval: corrected paired score interval (Tango 1998) for 0/1 metrics, seeded "
        "studentized bootstrap over samples for other means, seeded bootstrap of the samples of both models together "
        "(Efron 1987) for the rest",
        "metric",
    )
    drop_high: float | None = fact("upper end of that interval", "metric")
    relative_drop: float | None = fact("drop / |float|", "ratio")
    gain_share: float | None = fact(
        "lower end of the 95 % interval of the gain (-drop_high) / scale of the metric: 1 for shares, else the "
        "larger magnitude of both models' values",
        "ratio",
    )
    expected: float | None = fact(
        "metric of the float model that the user knows, from --expected-float-metric", "metric"
    )
    expected_shortfall: float | None = fact(
        "distance of the expected metric to the 99 % interval of the float model's measured one (corrected Wilson "
        "score for 0/1 metrics, seeded bootstrap over samples else) / scale of the metric; 0 inside it and "
        "where the model is better",
        "ratio",
    )
    expected_quantized: float | None = fact(
        "metric of the quantized model that another evaluation gave, from --expected-quantized-metric", "metric"
    )
    expected_quantized_distance: float | None = fact(
        "distance of that metric to the 99 % interval of the quantized model's measured one, as of expected_shortfall, "
        "/ scale of the metric; 0 inside it, and never negative: either may be the better one",
        "ratio",
    )
    label_fault: Literal["none", "shifted", "reordered", "chance", "weak", "few", "turned"] | None = fact(
        "why the labels cannot judge class scores or boxes; then no drop is given, but for weak. Shifted and reordered "
        "labels agree with the float model's classes after that change only, at chance they do not agree at all; weak: "
        "a float model with a kappa of slight_kappa at most that does not reach what is expected of it; few: the float "
        "model finds few of the labelled boxes, no loss is proven, and nobody expects so; turned: in another order the "
        "labels give the float model a far better metric"
    )
    chance: float | None = fact(
        "share of samples that a guess would get right: labels and the float model's classes independent (Cohen 1960)",
        "share",
    )
    kappa: float | None = fact(
        "Cohen's kappa of labels and the float model's classes: what share of what chance leaves is right beyond it; "
        "0 is a guess, 1 is always right. Not of labels of one class alone",
        "kappa",
    )
    relabelled_value: float | None = fact(
        "share of samples where label and the float model's class are equal after the labels are shifted or reordered",
        "share",
    )
    label_turn: str | None = fact("order in which labels that are turned fit")
    turned_value: float | None = fact("metric of the float model with labels in that order, first samples", "metric")
    label_shift: int | None = fact("what has to be added to labels that are shifted", "classes")


class ComparisonFacts(Facts):
    """Difference d = y - x of an output y and what it is held against, x; the worst output where there are several."""

    samples: int | None = fact("samples compared")
    max_abs_difference: float | None = fact("largest |d|", "value")
    relative_difference: float | None = fact(
        "largest |d| of a column / its largest |x|, or a hundredth of the output's where that is more; columns lie on "
        "the shorter of axis 1 and the last axis",
        "ratio",
    )
    sqnr_db: float | None = fact("-10 · log10(sum of d² / sum of x²)", "dB")
    agreement: float | None = fact("share of samples where both name the same class", "share")
    nonfinite: int | None = fact("pairs left out because one of them is NaN or infinite")


class DeviceFacts(ComparisonFacts):
    """Outputs of the device (y) against those of the quantized model here (x)."""

    noise_ratio: float | None = fact(
        "mean d² of device and quantized model / mean d² of quantized and float model, for the output where it is most",
        "ratio",
    )
    metric: float | None = fact("task metric of the device's outputs, where it is a mean over samples", "metric")
    metric_loss: float | None = fact(
        "what the device loses of it against the quantized model here; of a metric that is no share over the float "
        "model's value; positive is worse",
        "share",
    )
    runtime: Words[str | None] = fact(
        "what computed recorded outputs (quantmedic collect --outputs-only): the library, with its version"
    )
    processor: Words[str | None] = fact("where they were recorded: kind of the processor, and whether it has VNNI")
    recorded_sqnr_db: float | None = fact("of recorded outputs against the float model's on that installation", "dB")
    recorded_gain_db: float | None = fact("recorded_sqnr_db - what the outputs here keep of the float model's", "dB")
    tensors: int | None = fact("tensors of --device-tensors that were compared")
    departing_layers: int | None = fact("layers at which a departure of the device begins (device_departs)")


class StageFacts(ComparisonFacts):
    """One model of the toolchain's way from float to quantized (y) against the first of them (x)."""

    name: str | None = fact("name of the stage, from --stage")
    previous_sqnr_db: float | None = fact("sqnr_db against the stage before instead of the first", "dB")
    metric: float | None = fact("task metric of the stage's model", "metric")
