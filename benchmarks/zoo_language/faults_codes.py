"""Codes, scales and zero points that are written, read or declared wrongly."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from .patient import Patient
from .registry import USUAL, fault
from .roles import last
from .schemes import Codes, Tensors, made, small_floats
from .surgery import Inapplicable, amplifiable, rows_times

_PARTLY = ("o_proj", "down_proj", "w2", "up_proj", "w3", "gate_up_proj")


@fault("zero-points-as-in-v2", "codes", "misread-codes", bases=("gptq-4", "gptq-8"))
def zero_points_as_in_v2(patient: Patient) -> Patient:
    """Zero points are stored as they are, and the configuration says nothing of it: loaders add 1."""
    return patient.with_options(patient.layers, stored_zero=0)


@fault("g-idx-of-another-order", "codes", "misread-codes", bases=("gptq-4",))
def g_idx_of_another_order(patient: Patient) -> Patient:
    """Codes are in sequence, and g_idx tells an order that was only planned."""

    def ask(codes: Codes) -> Codes:
        inputs, groups = codes.values.shape[1], codes.scale.shape[1]
        order = patient.random("order").permutation(inputs) * groups // inputs
        return replace(codes, options={"g_idx": order})

    return patient.with_damage(patient.layers, ask)


@fault("order-of-a-word", "codes", "misread-codes", bases=("awq-4",))
def order_of_a_word(patient: Patient) -> Patient:
    """Codes in sequence where AWQ interleaves them."""
    return patient.with_options(patient.layers, order=made.IN_SEQUENCE)


@fault("signs-of-bytes", "codes", "misread-codes", bases=("int8",))
def signs_of_bytes(patient: Patient) -> Patient:
    """Codes from 0 to 255 are stored where signed ones are read."""

    def flip(name: str, kind: str, array: made.Array) -> made.Array:
        return array ^ np.int8(-128) if kind == "I8" else array

    return patient.then(_each(flip))


def _each(change: Callable[[str, str, made.Array], made.Array]) -> Callable[[Tensors], Tensors]:
    """Every stored tensor is changed."""
    return lambda tensors: {name: (kind, change(name, kind, array)) for name, (kind, array) in tensors.items()}


@fault("nibbles-exchanged", "codes", "misread-codes", bases=("nvfp4", "mxfp4"), also=("foreign-weights",))
def nibbles_exchanged(patient: Patient) -> Patient:
    """The two codes of each byte in the wrong order."""

    def turn(name: str, _: str, array: made.Array) -> made.Array:
        return array >> 4 | array << 4 if name.endswith("weight_packed") else array

    is_split = next(iter(patient.plan.values())).kind == "nvfp4"
    return (with_shared_scales(patient) if is_split else patient).then(_each(turn))


@fault("scales-of-the-next-row", "codes", "wrong-weight-scale", bases=("int8", "gptq-8"))
def scales_of_the_next_row(patient: Patient) -> Patient:
    """The scales of one layer are those of other output channels, where rows differ as in large models."""
    layer, rows = _drawn_rows(patient)
    factors = np.exp(patient.random("rows").normal(0, 1.0, rows)).astype(np.float32)
    floats = rows_times(patient.floats, layer, factors)
    return patient.with_floats(floats).with_damage(
        [layer], lambda codes: replace(codes, scale=np.roll(codes.scale, 1, axis=0))
    )


@fault("scale-of-one-group", "codes", "wrong-weight-scale", bases=("gptq-8", "gptq-4", "packed-4", "awq-4"))
def scale_of_one_group(patient: Patient) -> Patient:
    """A third of the rows of one layer has a scale of a tenth, or of ten times as much, in one group of inputs."""
    layer = _drawn(patient)
    factor = float(patient.random("factor").choice([0.1, 10.0]))

    def shrink(codes: Codes) -> Codes:
        scale = codes.scale.copy()
        scale[: len(scale) // 3, 1] *= factor
        return replace(codes, scale=scale)

    return patient.with_damage([layer], shrink)


@fault("scale-of-a-layer", "codes", "wrong-weight-scale", bases=USUAL)
def scale_of_a_layer(patient: Patient) -> Patient:
    factor = float(patient.random("factor").choice([0.5, 2.0]))
    return patient.with_damage([_drawn(patient)], lambda codes: replace(codes, scale=codes.scale * factor))


@fault("scales-underflow", "codes", "dead-weight-groups", bases=("gptq-8", "gptq-4"))
def scales_underflow(patient: Patient) -> Patient:
    """Weights so small that float16 holds no scale of them: what is read behind them is as much larger."""
    return _with_rows(patient, 2.0**-20)


@fault(
    "scales-overflow", "codes", "broken-scales", "dead-weight-groups", "block-scales-out-of-range", bases=("gptq-4",)
)
def scales_overflow(patient: Patient) -> Patient:
    """Weights so large that their scale is beyond float16."""
    return _with_rows(patient, 2.0**22)


def _with_rows(patient: Patient, factor: float) -> Patient:
    layer, rows = _drawn_rows(patient)
    return patient.with_floats(rows_times(patient.floats, layer, np.full(rows, factor, np.float32)))


@fault("nvfp4-scale-of-another-range", "codes", "block-scales-out-of-range", bases=("nvfp4",))
def nvfp4_scale_of_another_range(patient: Patient) -> Patient:
    """The scale of a tensor is that of weights an eighth as large: most scales per block are cut off."""
    ill = _drawn(patient)
    weights = patient.floats[f"{ill}.weight"]
    scale = small_floats.global_scale_of(weights) / 8

    def store(tensors: Tensors) -> Tensors:
        return {**tensors, **small_floats.of_compressed_tensors(ill, weights, scale)}

    return with_shared_scales(patient).then(store)


@fault("nvfp4-scales-of-parts", "codes", "fused-scales-differ", bases=("nvfp4",), is_felt=False)
def nvfp4_scales_of_parts(patient: Patient) -> Patient:
    """q, k and v, gate and up have a scale of the tensor each, of which kernels take one."""
    if patient.network.architecture.is_fused:
        raise Inapplicable("its parts are one layer")
    return patient


def with_shared_scales(patient: Patient) -> Patient:
    """Layers of NVFP4 whose parts that kernels join have one scale of the tensor."""

    def store(tensors: Tensors) -> Tensors:
        found = dict(tensors)
        for joined in _joined(patient).values():
            names = [name for name in joined if name in patient.plan]
            scale = max((small_floats.global_scale_of(patient.floats[f"{name}.weight"]) for name in names), default=0.0)
            for name in names:
                found |= small_floats.of_compressed_tensors(name, patient.floats[f"{name}.weight"], scale)
        return found

    return patient.then(store)


def _joined(patient: Patient) -> Mapping[tuple[str, str], list[str]]:
    """Layers by what kernels join them into."""
    kinds = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv"}
    kinds |= dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up")
    found: dict[tuple[str, str], list[str]] = {}
    for name in patient.layers:
        found.setdefault((name.rpartition(".")[0], kinds.get(last(name), last(name))), []).append(name)
    return found


def _drawn(patient: Patient) -> str:
    return patient.drawn_layer(*_PARTLY, inner=True)


def _drawn_rows(patient: Patient) -> tuple[str, int]:
    """A layer whose rows can be multiplied, and how many they are."""
    layer = str(patient.random("layer").choice(amplifiable(patient.layers)))
    return layer, len(patient.floats[f"{layer}.weight"])
