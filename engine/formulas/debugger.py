"""The table of LiteRT's QuantizationDebugger: what each quantized operator errs, with metrics that the user may add."""

from pydantic import Field

from quantmedic.engine.record import Record

#: Columns before the metrics, the metrics that are always there, and columns behind all metrics: in this order.
LEADING = ("op_name", "tensor_idx")
METRICS = ("num_elements", "stddev", "mean_error", "max_abs_error", "mean_squared_error")
TRAILING = ("scale", "zero_point", "tensor_name")
#: Columns behind those of LiteRT: the two figures that its guide computes from them.
COMPUTED = ("range", "rmse/scale")
#: Layers at the beginning that LiteRT's guide suspects beside those of large errors.
FIRST_LAYERS = 5


class DebuggerLayer(Record):
    """One quantized tensor: the operator that writes it, its grid, and each metric averaged over the samples.

    A metric without any number is NaN.
    """

    op_name: str
    tensor_idx: int
    tensor_name: str
    scale: float
    zero_point: int
    bits: int
    metrics: dict[str, float]

    @property
    def first_name(self) -> str:
        """What tells a fused tensor from others: its name lists all that was fused, and the first part suffices."""
        return self.tensor_name.partition(";")[0]

    @property
    def rmse_over_scale(self) -> float:
        """√mean_squared_error / scale; NaN where the error is unknown."""
        square = self.metrics["mean_squared_error"]
        return float(square**0.5 / self.scale) if self.scale > 0 else float("nan")

    @property
    def range(self) -> float:
        """What all codes together span: 255 · scale for 8 bits, 65535 · scale for 16."""
        return float(2**self.bits - 1) * self.scale


class DenylistOutcome(Record):
    """What one denylist gives: noise at the outputs, and the task metric; None where it was not measured.

    ``layers`` run in float. ``sqnr_db`` is that of the worst output, of its columns and operands; ``agreement`` the
    share of samples with the float model's class.
    """

    name: str
    samples: int
    layers: tuple[str, ...] = ()
    sqnr_db: float | None = None
    agreement: float | None = None
    metric: float | None = None
    failed: str | None = None


class DebuggerRecord(Record):
    """The table, in order of execution, and the metrics of the network's outputs.

    ``suspect_steps`` is the √mean_squared_error in steps above which a layer is suspected. ``unmeasured`` names
    quantized tensors whose operator cannot be measured apart from its neighbours. ``metric`` is the task metric of
    ``denylists``.
    """

    framework: str
    float_model: str
    quantized_model: str
    data: str
    samples: int
    suspect_steps: float
    layers: tuple[DebuggerLayer, ...]
    outputs: dict[str, float] = Field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    metric: str | None = None
    denylists: tuple[DenylistOutcome, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of the columns."""
        return tuple(self.layers[0].metrics) if self.layers else METRICS

    @property
    def worst(self) -> list[DebuggerLayer]:
        """Layers by error in steps, the largest first; those without a number last."""
        known = [layer for layer in self.layers if layer.rmse_over_scale >= 0]
        unknown = [layer for layer in self.layers if not layer.rmse_over_scale >= 0]
        return [*sorted(known, key=lambda layer: -layer.rmse_over_scale), *unknown]

    @property
    def suspected(self) -> list[DebuggerLayer]:
        """Layers whose error is larger than rounding explains, in order of execution."""
        return [layer for layer in self.layers if layer.rmse_over_scale > self.suspect_steps]

    @property
    def first_beside(self) -> list[DebuggerLayer]:
        """The first layers that are not suspected; none where no layer is."""
        suspected = self.suspected
        return [layer for layer in self.layers[:FIRST_LAYERS] if layer not in suspected] if suspected else []

    @property
    def denylisted_nodes(self) -> list[str]:
        """Whole names of what LiteRT's guide leaves in float: the suspected layers, then the first ones."""
        return list(dict.fromkeys(layer.tensor_name for layer in (*self.suspected, *self.first_beside)))

    @property
    def denylisted_ops(self) -> list[str]:
        """Operator types of which every layer is suspected: the same as a list of types."""
        suspected = self.suspected
        fine = {layer.op_name for layer in self.layers if layer not in suspected}
        return [kind for kind in dict.fromkeys(layer.op_name for layer in suspected) if kind not in fine]
