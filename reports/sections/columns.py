"""The columns of the layer table: every quantity that is known of a layer, for page, terminal and CSV alike."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from quantmedic.engine.case.facts import ROLES, LayerFacts, Role, fact_paths
from quantmedic.reports.text import FactInfo, field_info

#: Names of neighbours and of tensors: facts for rules, but no quantities of the layer. ``{role}.dataset`` repeats
#: the role, and ``output.data`` that of the set that is judged.
NOT_SHOWN = (
    "float_nodes",
    "feeders",
    "halves",
    "weight.name",
    "weight_error.dataset",
    "output.name",
    "output.float_name",
    "output.producer",
    "output.producer_name",
    "output.readers",
    *(f"output.{role}.dataset" for role in ROLES),
)
#: Groups of columns by the beginning of their paths, in the order of the table; {role}: the set that is judged comes
#: first. Each with the few words that stand over a narrow column.
_GROUPS = (
    ("", "layer", ""),
    ("output.{role}.accumulated.", "accumulated error, {role}", "accum. {short}"),
    ("output.{role}.rounding.", "rounding error, {role}", "rounding {short}"),
    ("output.{role}.step.", "step error, {role}", "step {short}"),
    ("output.{role}.values.", "float values, {role}", "values {short}"),
    ("output.{role}.clipping.", "clipping, {role}", "clipping {short}"),
    ("output.{role}.", "output, {role}", "output {short}"),
    ("output.quantizer.", "output quantizer", "output"),
    ("output.recorded.", "quantizer in the toolchain's files", "recorded"),
    ("output.device.", "output, device against the model here", "device"),
    ("output.", "output", "output"),
    ("weight.", "weights", "weights"),
    ("weight.quantizer.", "weight quantizer", "weights"),
    ("weight.rounding.", "weight rounding", "weight rounding"),
    ("weight_error.", "effect of weight errors", "weight errors"),
    ("bias.", "bias", "bias"),
    ("bias.rounding.", "bias rounding", "bias rounding"),
    ("constant.", "other constant", "constant"),
    ("constant.rounding.", "rounding of that constant", "constant rounding"),
    ("reported.", "figures in the toolchain's files", "reported"),
)
#: What a toolchain says of a layer in its own files.
_OF_FILES = ("reported.", "output.recorded.")
#: A quantity of a layer; None where it was not measured.
Value = str | int | float | tuple[str, ...] | None
_SHORT = {"representative": "repr.", "validation": "valid."}
#: Labels of facts whose field name is a bad label; the others are labelled with their field name in words.
_LABELS = {
    "index": "#",
    "name": "layer",
    "float_name": "float name",
    "quantized_name": "quantized name",
    "op_type": "operator",
    "executed_as": "runs as",
    "is_compute": "computes",
    "is_last": "last",
    "compute_index": "compute #",
    "added_nmse": "added NMSE",
    "mse": "MSE",
    "nmse": "NMSE",
    "normalized_mse": "normalized MSE",
    "saved_sqnr_db": "SQNR of the saved tensor",
    "own_metrics": "own metrics",
    "own_sqnr_db": "SQNR of what begins here",
    "own_steps": "what begins here",
    "device_departs": "device departs",
    "weight_normalized_mse": "normalized MSE of weights",
    "weight_sqnr_db": "SQNR of weights",
    "reported_weight_level_db": "SQNR of reported weights",
    "sqnr_db": "SQNR",
    "worst_output_sqnr_db": "worst column of the output",
    "rmse_over_scale": "RMSE / scale",
    "bias_over_std": "bias / std",
    "worst_channel_sqnr_db": "worst channel",
    "worst_channel": "worst channel #",
    "median_channel_sqnr_db": "median channel",
    "input_worst_channel_sqnr_db": "worst channel of inputs",
    "input_sqnr_db": "SQNR of inputs",
    "count": "elements",
    "nonfinite_count": "not finite",
    "absmax": "max |x|",
    "p1": "1 %",
    "p50": "median",
    "p99": "99 %",
    "abs_p99_99": "99.99 % of |x|",
    "zscore_max": "max z-score",
    "negative_share": "negative",
    "absmax_over_median": "max |x| / median",
    "absmax_over_std": "max |w| / std",
    "axis_gain_db": "gain of another axis",
    "worst_group_sqnr_db": "worst group",
    "worst_group": "worst group at",
    "dead_group": "dead group at",
    "found_as": "stored as",
    "overflowing_channels": "overflowing",
    "overflowing_dead_channels": "overflowing, dead",
    "distinct_codes": "codes in use",
    "effective_bits": "bits in use",
    "scale_axis": "axis of scales",
    "cut_bits": "cut off at bits",
    "peer_zscore": "z-score among peers",
    "best_sqnr_db": "best SQNR",
    "unmasked_sqnr_db": "SQNR unmasked",
    "inner_sqnr_db": "SQNR inside",
    "predicted_per_channel_sqnr_db": "SQNR per channel",
    "predicted_best_sqnr_db": "best SQNR",
    "predicted_best_gain_db": "gain of best range",
    "predicted_best_low": "best low",
    "predicted_best_high": "best high",
    "predicted_best_channel_sqnr_db": "best worst channel",
    "predicted_8bit_sqnr_db": "SQNR in 8 bits",
}
#: The same where the field's name means another thing in its group.
_OWN_LABELS = {"mean": "mean", "max": "largest", "std": "std"}
#: Standard deviations whose square is a column too.
_SQUARED = (
    "output.{role}.values.std",
    "weight.std",
    "weight.stored_std",
    "reported.weight_std",
    "reported.weight_stored_std",
)
_ERROR_GROUPS = ("accumulated.", "rounding.", "operator.", "step.")
_CHARTED = ("mse", "nmse", "sqnr_db", "cosine")
_TITLE = ("index", "name", "op_type")


@dataclass(frozen=True)
class Preset:
    """A table for one purpose: its columns, and the column that orders it; ``-KEY`` for the largest first."""

    name: str
    columns: tuple[str, ...]
    sort: str | None = None
    #: What orders it where the first was not measured.
    sort_else: str | None = None


#: What is shown before anything is chosen; {role}: the set that is judged, {other}: the other one.
DEFAULT = Preset(
    "default",
    (
        *_TITLE,
        "output.quantizer.bits",
        "weight.quantizer.bits",
        "output.{role}.rounding.sqnr_db",
        "output.{role}.accumulated.sqnr_db",
        "output.{other}.accumulated.sqnr_db",
        "output.device.sqnr_db",
        "output.{role}.accumulated.worst_channel_sqnr_db",
        "output.{role}.values.min",
        "output.{role}.values.max",
        "findings",
    ),
)
#: The same where both models were read and not run.
DEFAULT_STATIC = Preset(
    "default",
    (
        *_TITLE,
        "output.quantizer.bits",
        "weight.quantizer.bits",
        "weight.rounding.sqnr_db",
        "weight.rounding.worst_channel_sqnr_db",
        "findings",
    ),
)
#: The same where nothing but weights is known, as of checkpoints.
DEFAULT_WEIGHTS = Preset(
    "default",
    (
        "index",
        "name",
        "weight.role",
        "weight.format",
        "weight.quantizer.bits",
        "weight.quantizer.granularity",
        "weight.group_size",
        "weight.rounding.sqnr_db",
        "weight.rounding.worst_channel_sqnr_db",
        "weight.worst_group_sqnr_db",
        "findings",
    ),
    "weight.rounding.sqnr_db",
)
#: The same where a toolchain's own figures are all that is known.
DEFAULT_REPORTED = Preset(
    "default",
    (
        *_TITLE,
        *(f"reported.{field}" for field in ("cosine", "sqnr_db", "mse", "rmse_over_scale", "normalized_mse")),
        "reported.weight_normalized_mse",
        "reported.min",
        "reported.max",
        "reported.own_metrics",
        *(f"output.recorded.{field}" for field in ("low", "high", "scale", "zero_point", "bits")),
        "reported.device",
        "reported.dtype",
        "findings",
    ),
)
_MOMENTS = ("min", "max", "mean", "std", "variance")
PRESETS = (
    Preset(
        "activations",
        (
            *_TITLE,
            "output.{role}.accumulated.mse",
            "output.{role}.normalized_mse",
            "output.{role}.accumulated.nmse",
            "output.{role}.accumulated.sqnr_db",
            "output.{role}.accumulated.cosine",
            *(f"output.{{role}}.values.{moment}" for moment in _MOMENTS),
            "output.quantizer.low",
            "output.quantizer.high",
            "output.{role}.clipping.share",
            "reported.normalized_mse",
            "reported.saved_sqnr_db",
            "reported.min",
            "reported.max",
            "findings",
        ),
        "-output.{role}.accumulated.mse",
        "-reported.normalized_mse",
    ),
    Preset(
        "weights",
        (
            *_TITLE,
            *(f"weight.{moment}" for moment in _MOMENTS),
            *(f"weight.stored_{moment}" for moment in _MOMENTS),
            "weight.normalized_mse",
            "weight.rounding.mse",
            "weight.rounding.nmse",
            "weight.rounding.sqnr_db",
            "weight.rounding.worst_channel_sqnr_db",
            "weight.channel_range_ratio",
            *(f"reported.weight_{moment}" for moment in _MOMENTS),
            *(f"reported.weight_stored_{moment}" for moment in _MOMENTS),
            "reported.weight_normalized_mse",
            "reported_weight_level_db",
            "findings",
        ),
        "-weight.rounding.mse",
        "-reported.weight_normalized_mse",
    ),
    Preset(
        "errors",
        (
            *_TITLE,
            *(
                f"output.{{{which}}}.{kind}.{metric}"
                for which in ("role", "other")
                for kind in ("rounding", "step", "accumulated")
                for metric in ("mse", "sqnr_db", "cosine")
            ),
            "output.{role}.accumulated.worst_channel_sqnr_db",
            "output.{role}.amplification",
            "added_nmse",
            "born",
            "findings",
        ),
        "output.{role}.accumulated.sqnr_db",
    ),
    Preset(
        "quantizers",
        (
            *_TITLE,
            "executed_as",
            *(
                f"output.quantizer.{field}"
                for field in ("bits", "scale", "zero_point", "signed", "symmetric", "low", "high", "granularity")
            ),
            "output.{role}.values.min",
            "output.{role}.values.max",
            "output.{role}.clipping.utilisation",
            *(f"weight.quantizer.{field}" for field in ("bits", "scale", "granularity", "axis", "symmetric")),
            "findings",
        ),
    ),
)
ALL = "all"


@dataclass(frozen=True)
class Column:
    """One quantity of all layers; ``values`` holds one per layer, None where it was not measured."""

    key: str
    label: str
    group: str
    short_group: str
    unit: str | None
    description: str
    values: tuple[Value, ...]

    @property
    def numeric(self) -> bool:
        """All values are numbers."""
        return all(issubclass(kind, int | float) and kind is not bool for kind in set(map(type, self.known)))

    @property
    def known(self) -> list[str | int | float | tuple[str, ...]]:
        """The values that were measured."""
        return [value for value in self.values if value is not None]

    @property
    def title(self) -> str:
        """Group and label on one line: what the column is called where it stands alone."""
        return f"{self.group}: {self.label}" if self.group else self.label


def judged_set(layers: Iterable[LayerFacts]) -> Role:
    """The data set that layers are judged on: validation where it was measured, else representative."""
    measured = any(layer.output.validation.accumulated.sqnr_db is not None for layer in layers)
    return "validation" if measured else "representative"


def layer_columns(layers: Sequence[LayerFacts], findings: Sequence[tuple[str, ...]]) -> list[Column]:
    """Every quantity that at least one layer has, in the order of the table, and the rules that flagged each layer.

    Args:
        layers: Facts of the layers.
        findings: Codes of the rules that flagged them, one tuple per layer.
    """
    read = _reader(layers)
    columns = [Column("findings", "findings", "layer", "", None, "codes of the rules that flagged it", tuple(findings))]
    for place in _places(judged_set(layers)):
        values = read(place.source)
        if all(value is None or value == () for value in values):
            continue
        if place.squared:
            values = [value * value if isinstance(value, int | float) else None for value in values]
        columns.append(
            Column(
                place.key,
                place.label,
                place.group,
                place.short_group,
                place.info.unit,
                place.info.description,
                tuple(values),
            )
        )
    order = {key: rank for rank, key in enumerate((*_TITLE, "findings"))}
    return sorted(columns, key=lambda column: order.get(column.key, len(order)))


def presets(columns: Iterable[Column], role: Role) -> dict[str, Preset]:
    """The ready tables of a case by name, default first: those with columns of their own."""
    known = {column.key for column in columns}
    found = [_preset_for(preset, known, role) for preset in (_default(known), *PRESETS)]
    common = {*_TITLE, "findings", "executed_as", "born", "added_nmse"}
    own = [preset for preset in found if preset.name == DEFAULT.name or set(preset.columns) - common]
    everything = Preset(ALL, tuple(column.key for column in columns))
    return {preset.name: preset for preset in (*own, everything)}


def _default(known: Iterable[str]) -> Preset:
    """The first table: of values where there are any, else of quantizers, else of weights alone."""
    keys = list(known)
    if any(key.startswith(f"output.{role}.") for role in ROLES for key in keys):
        return DEFAULT
    if of_files_alone(keys) and any(key.startswith(_OF_FILES) for key in keys):
        return DEFAULT_REPORTED
    return DEFAULT_STATIC if any(key.startswith("output.") for key in keys) else DEFAULT_WEIGHTS


def of_files_alone(keys: Iterable[str]) -> bool:
    """Neither outputs nor weights of a model are among the columns; at most what files of a toolchain say of them."""
    return not any(key.startswith(("output.", "weight.")) and not key.startswith(_OF_FILES) for key in keys)


def least_wanted(columns: Sequence[Column], role: Role) -> list[str]:
    """Keys of the columns that may be left out where space is short, the least wanted first.

    Names, errors, quantizers and what stands in a ready table are never among them.
    """
    kept = {key for name, preset in presets(columns, role).items() if name != ALL for key in preset.columns}
    kept |= {f"output.{one}.{kind}{metric}" for one in ROLES for kind in _ERROR_GROUPS for metric in _CHARTED}
    kept |= {"float_name", "quantized_name", "executed_as", "degraded", "born"}
    free = [key for key in (c.key for c in columns) if key not in kept and not key.startswith("output.quantizer.")]
    ranks = ("weight.", f"output.{role}.", "output.", "")
    free.reverse()
    return sorted(free, key=lambda key: -next(rank for rank, prefix in enumerate(ranks) if key.startswith(prefix)))


def _preset_for(preset: Preset, known: set[str], role: Role) -> Preset:
    """The same for one case: of its data sets, and without the columns that it lacks."""
    other = next(one for one in ROLES if one != role)
    keys = [key.format(role=role, other=other) for key in preset.columns]
    orders = (order.format(role=role) for order in (preset.sort, preset.sort_else) if order)
    sort = next((order for order in orders if order.removeprefix("-") in known), None)
    return Preset(
        preset.name,
        tuple(key for key in keys if key in known),
        sort,
    )


@dataclass(frozen=True)
class _Place:
    """Where the values of a column come from, and what it is called."""

    key: str
    source: str
    squared: bool
    label: str
    group: str
    short_group: str
    info: FactInfo


@cache
def _places(role: Role) -> tuple[_Place, ...]:
    """All columns that there can be, in the order of the table."""
    roles = (role, *(one for one in ROLES if one != role))
    groups = [
        (prefix.format(role=one), name.format(role=one), short.format(short=_SHORT[one]))
        for prefix, name, short in _GROUPS
        for one in (roles if "{role}" in prefix else roles[:1])
    ]
    order = {prefix: rank for rank, (prefix, _, _) in enumerate(groups)}
    longest = sorted(groups, key=lambda group: -len(group[0]))
    squared = {path.format(role=one) for path in _SQUARED for one in roles}
    found = []
    for path, field in fact_paths("layer").items():
        if path.startswith(("model.", "output.data.")) or path in NOT_SHOWN:
            continue
        prefix, group, short = next(entry for entry in longest if path.startswith(entry[0]))
        info = field_info(field)
        label = _column_label(path.removeprefix(prefix), prefix)
        found.append((order[prefix], _Place(path, path, False, label, group, short, info)))
        if path in squared:
            wide = FactInfo(f"square of std: {info.description}", "value²")
            key, label = (text.removesuffix("std") + "variance" for text in (path, label))
            found.append((order[prefix], _Place(key, path, True, label, group, short, wide)))
    return tuple(place for _, place in sorted(found, key=lambda item: item[0]))


def _column_label(field: str, prefix: str) -> str:
    if prefix.endswith(_ERROR_GROUPS) and field in _OWN_LABELS:
        return _OWN_LABELS[field]
    return _LABELS.get(field) or field.removesuffix("_db").replace("_", " ")


def _reader(layers: Sequence[LayerFacts]) -> Callable[[str], list[Value]]:
    """Reads a path of all layers; what several paths share is walked once."""
    walked: dict[str, list[Any]] = {"": list(layers)}  # Any: facts on the way, values at the end

    def walk_path(path: str) -> list[Any]:
        if path not in walked:
            parent, _, field = path.rpartition(".")
            walked[path] = [getattr(view, field) for view in walk_path(parent)]
        return walked[path]

    return walk_path
