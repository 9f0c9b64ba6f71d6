"""Checkpoints with planted faults: each is named rightly, and the healthy ones stay clean."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made
from builders.properties import examples
from builders.tiers import others_nightly
from hypothesis import given
from hypothesis import strategies as st

import quantmedic
from quantmedic.collectors.from_checkpoint.layers import group_sums as loops
from quantmedic.collectors.from_checkpoint.layers.group_sums import group_sums
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Grid
from quantmedic.collectors.from_checkpoint.safetensors_file import open_checkpoint
from quantmedic.collectors.pair.weight_grids import MISPLACED_STEPS
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.errors import ModelError, QuantmedicError

FLOATS = made.language_model()
PATIENT = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory: Any) -> Path:
    return made.write_folder(tmp_path_factory.mktemp("float"), FLOATS)


def compared(folder: Path, quantized: Path) -> tuple[Diagnosis, dict[str, WeightFacts]]:
    case = quantmedic.collect(folder, quantized, weights_only=True)
    return quantmedic.judge(case), {op.name: op.weight for op in case.record.operators}


def found(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    """Rules that fired, with their subjects."""
    return {(rule, subject) for cause in diagnosis.causes for rule in cause.rules for subject in cause.subjects}


def fakes(folder: Path, tensors: made.Tensors, name: str = "quantized", **config: Any) -> Path:
    return made.write_folder(folder / name, tensors, config)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", others_nightly(["gptq", "awq", "compressed"]))
def test_a_healthy_checkpoint_is_clean_and_has_the_errors_of_plain_numpy(
    kind: str, float_folder: Path, tmp_path: Path
) -> None:
    quantized = fakes(tmp_path, made.quantized_model(FLOATS, kind), **made.configuration(kind))
    diagnosis, weights = compared(float_folder, quantized)
    assert (diagnosis.verdict, diagnosis.causes) == ("healthy", ())
    assert (diagnosis.model.framework, diagnosis.model.harmed) == ("safetensors", None)
    assert diagnosis.warnings[0].startswith("weights alone were compared")
    assert "left in float: lm_head.weight" in diagnosis.warnings[1]
    facts = weights[PATIENT]
    assert (facts.quantizer.bits, facts.group_size, facts.quantizer.granularity) == (4, made.GROUP, "per_block")
    assert facts.groups == made.INNER * made.HIDDEN // made.GROUP
    assert facts.peers == len(made.linear_names(FLOATS))
    x = made.from_bfloat16(FLOATS[f"{PATIENT}.weight"][1]).astype(float)
    codes, scale, zero = made.quantize(x.astype(np.float32), 4, made.GROUP, symmetric=kind == "compressed")
    if kind == "compressed":
        scale = made.from_bfloat16(made.bfloat16(scale)).astype(float)
    y = made.dequantize(codes, scale, zero)
    d = y - x
    noise, power = (d * d).reshape(len(x), -1, made.GROUP).sum(2), (x * x).reshape(len(x), -1, made.GROUP).sum(2)
    level = 10 * np.log10(power / noise)
    row, group = np.unravel_index(level.argmin(), level.shape)
    channels = 10 * np.log10(power.sum(1) / noise.sum(1))
    assert facts.rounding.mse == pytest.approx((d * d).mean(), rel=1e-5)
    assert facts.rounding.cosine == pytest.approx((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()), rel=1e-6)
    assert facts.rounding.max == pytest.approx(np.abs(d).max(), rel=1e-5)
    assert facts.rounding.worst_channel_sqnr_db == pytest.approx(channels.min(), abs=1e-4)
    assert facts.rounding.worst_channel == channels.argmin()
    assert facts.worst_group_sqnr_db == pytest.approx(level.min(), abs=1e-4)
    assert facts.worst_group == f"{row} / {group}"
    assert facts.std == pytest.approx(x.std(), rel=1e-6)
    assert (facts.stored_min, facts.stored_max) == (pytest.approx(y.min()), pytest.approx(y.max()))
    assert facts.stored_mean == pytest.approx(y.mean(), abs=1e-7)
    assert facts.stored_std == pytest.approx(y.std(), rel=1e-5)
    fourth = ((x - x.mean()) ** 4).mean()
    assert facts.kurtosis == pytest.approx(fourth / x.var() ** 2 - 3, rel=1e-5)
    assert facts.end_share == pytest.approx(((codes == 0) | (codes == 15)).mean(), abs=1e-6)
    assert facts.rounding_mean_steps == pytest.approx((d / np.repeat(scale, made.GROUP, 1)).mean(), abs=1e-6)


DEAD, ZERO, NAN, INFINITE, SHIFTED, CUT, COPIED = (
    f"model.layers.{layer}.{part}"
    for layer, part in (
        (0, "self_attn.q_proj"),
        (0, "self_attn.o_proj"),
        (1, "self_attn.q_proj"),
        (1, "self_attn.v_proj"),
        (2, "self_attn.o_proj"),
        (1, "mlp.up_proj"),
        (0, "mlp.up_proj"),
    )
)
BAD_SCALES = {ZERO: 0.0, NAN: np.nan, INFINITE: np.inf}


def ill(name: str, codes: Any, scale: Any, zero: Any) -> tuple[Any, Any, Any]:
    codes, scale = codes.copy(), scale.copy()
    if name == DEAD:
        codes[7, made.GROUP : 2 * made.GROUP] = zero[7, 1]
    if name in BAD_SCALES:
        scale[3, 0] = BAD_SCALES[name]
    if name == CUT:  # to a quarter of its range
        x = made.from_bfloat16(FLOATS[f"{CUT}.weight"][1]).reshape(len(codes), -1, made.GROUP)
        scale = (scale / 4).astype(np.float16).astype(float)
        codes = np.clip(np.rint(x / scale[:, :, None]) + zero[:, :, None], 0, 15).reshape(codes.shape).astype(np.uint8)
    return codes, scale, zero


@pytest.mark.thorough
def test_layers_that_are_ill_in_several_ways_are_each_named(float_folder: Path, tmp_path: Path) -> None:
    """Also in a case that was saved."""
    tensors = made.quantized_model(FLOATS, "gptq", options={SHIFTED: {"stored_zero": 0}}, damage=ill)
    other = "model.layers.2.mlp.up_proj"
    tensors |= {f"{COPIED}.{part}": tensors[f"{other}.{part}"] for part in ("qweight", "qzeros", "scales")}
    case = quantmedic.collect(float_folder, fakes(tmp_path, tensors, **made.configuration("gptq")), weights_only=True)
    diagnosis = quantmedic.judge(case)
    expected = {("W014", DEAD), ("W014", ZERO), ("W041", NAN), ("W041", INFINITE)}
    expected |= {("W016", SHIFTED), ("W034", CUT), ("W032", COPIED)}
    assert found(diagnosis) == expected and diagnosis.verdict == "degraded"
    quantmedic.save_case(case, tmp_path / "a.case")
    assert found(quantmedic.judge(quantmedic.load_case(tmp_path / "a.case"))) == expected
    weights = {op.name: op.weight for op in case.record.operators}
    facts = weights[DEAD]
    assert (facts.dead_groups, facts.dead_group, facts.worst_group) == (1, "7 / 1", "7 / 1")
    for name, bad in BAD_SCALES.items():
        assert (weights[name].dead_group, weights[name].broken_scale) == ("3 / 0", None if bad == 0 else "3 / 0")
        assert np.isfinite(weights[name].rounding.mse or np.nan)
    assert weights[SHIFTED].rounding_mean_steps == pytest.approx(-1.0, abs=0.01)
    assert (weights[CUT].clipped_share or 0.0) > 0.1 and (weights[CUT].peer_gap_db or 0.0) > 6
    assert weights[COPIED].twin == other and (weights[COPIED].twin_similarity or 0.0) > 0.98


@pytest.mark.nightly
def test_codes_and_zero_points_that_are_read_otherwise_than_written(tmp_path: Path, subtests: pytest.Subtests) -> None:
    floats = made.language_model(1)
    before = made.write_folder(tmp_path / "float", floats)
    v2 = {"quantization_config": {**made.CONFIGS["gptq"], "checkpoint_format": "gptq_v2"}}
    for kind, options, config, reading in (
        ("gptq", {"order": made.AWQ_ORDER}, None, "codes in AWQ's order of a word"),
        ("gptq", {"order": made.IN_SEQUENCE[::-1]}, None, "codes in the reverse order of a word"),
        ("awq", {"order": made.IN_SEQUENCE}, None, "codes in the order of a word instead of AWQ's"),
        ("awq", {"order": made.IN_SEQUENCE[::-1]}, None, "codes in the reverse order of a word"),
        ("gptq", {"stored_zero": 0}, None, "zero points as stored, without the + 1 of GPTQ v1"),
        ("gptq", {"stored_zero": 0}, v2, None),
    ):
        with subtests.test(kind, **options, is_declared=config is not None):
            tensors = made.quantized_model(floats, kind, options={"": options})
            diagnosis, weights = compared(before, fakes(tmp_path, tensors, **(config or made.configuration(kind))))
            layers = made.linear_names(floats)
            assert found(diagnosis) == ({("W016", name) for name in layers} if reading else set())
            if reading:
                assert {weights[name].better_reading for name in layers} == {reading}
                assert all((weights[name].reading_gain_db or 0.0) > 3 for name in layers)


@pytest.mark.thorough
def test_zero_points_that_v1_cannot_store(tmp_path: Path) -> None:
    """Groups of positive weights have zero point 0, which v1 stores as -1, in 4 bits 15: loaders read 16 or 0."""
    floats = dict(FLOATS)
    values = np.abs(made.from_bfloat16(floats[f"{PATIENT}.weight"][1]))
    floats[f"{PATIENT}.weight"] = ("BF16", made.bfloat16(values))
    before = made.write_folder(tmp_path / "float", floats)
    diagnosis, weights = compared(
        before, fakes(tmp_path, made.quantized_model(floats, "gptq"), **made.configuration("gptq"))
    )
    assert found(diagnosis) == {("W016", PATIENT)}
    assert "wrap around to 0" in (weights[PATIENT].better_reading or "")


@pytest.mark.thorough
def test_an_outlier_column(tmp_path: Path) -> None:
    floats = dict(FLOATS)
    values = made.from_bfloat16(floats[f"{PATIENT}.weight"][1]).copy()
    values[:, 100] *= 64
    floats[f"{PATIENT}.weight"] = ("BF16", made.bfloat16(values))
    before = made.write_folder(tmp_path / "float", floats)
    tensors = made.quantized_model(floats, "gptq", symmetric=True)
    diagnosis, weights = compared(before, fakes(tmp_path, tensors, **made.configuration("gptq")))
    assert found(diagnosis) == {("W015", PATIENT)}
    assert diagnosis.causes[0].severity == "low"
    assert weights[PATIENT].widest_input_channel == 100
    assert (weights[PATIENT].outlier_groups or 0) > 0.6 * made.INNER
    assert weights[PATIENT].input_gain_ratio == 1.0


@pytest.mark.thorough
def test_groups_by_activation_order(float_folder: Path, tmp_path: Path) -> None:
    """Inputs of a group lie anywhere, as with desc_act."""
    order = np.random.default_rng(2).permutation(made.HIDDEN)
    g_idx = np.empty(made.HIDDEN, int)
    g_idx[order] = np.arange(made.HIDDEN) // made.GROUP
    x = made.from_bfloat16(FLOATS[f"{PATIENT}.weight"][1])
    codes, scale, zero = made.quantize(x[:, order], 4, made.GROUP, symmetric=False)
    back = np.argsort(order)
    tensors = made.quantized_model(FLOATS, "gptq")
    tensors |= made.gptq(PATIENT, codes[:, back], scale, zero, 4, g_idx=g_idx)
    diagnosis, weights = compared(float_folder, fakes(tmp_path, tensors, **made.configuration("gptq")))
    assert not diagnosis.causes
    y = made.dequantize(codes, scale, zero)
    expected = 10 * np.log10((x.astype(float) ** 2).sum() / ((y - x[:, order]) ** 2).sum())
    assert weights[PATIENT].rounding.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert weights[PATIENT].better_reading is not None


@pytest.mark.thorough
def test_missing_and_changed_tensors(float_folder: Path, tmp_path: Path) -> None:
    tensors = made.quantized_model(FLOATS, "gptq")
    del tensors["model.norm.weight"]
    norm = "model.layers.0.input_layernorm.weight"
    tensors[norm] = ("BF16", made.bfloat16(made.from_bfloat16(tensors[norm][1]) * 1.1))
    tensors["lm_head.weight"] = ("BF16", tensors["lm_head.weight"][1][:-1])
    diagnosis, _ = compared(float_folder, fakes(tmp_path, tensors, **made.configuration("gptq")))
    checkpoint = diagnosis.model.checkpoint
    assert {rule for rule, _ in found(diagnosis)} == {"S013", "S014"}
    assert (checkpoint.missing, checkpoint.first_missing) == (1, "model.norm.weight")
    assert (checkpoint.mismatched, checkpoint.altered, checkpoint.first_unexplained) == (1, 1, norm)


@pytest.mark.thorough
def test_names_with_another_prefix_and_other_types_of_the_same_numbers_are_no_change(
    float_folder: Path, tmp_path: Path
) -> None:
    tensors = {name.removeprefix("model."): t for name, t in made.quantized_model(FLOATS, "gptq").items()}
    half = {n: ("F16", made.from_bfloat16(a).astype(np.float16)) for n, (t, a) in tensors.items() if t == "BF16"}
    diagnosis, weights = compared(float_folder, fakes(tmp_path, tensors | half, **made.configuration("gptq")))
    assert weights[PATIENT].quantizer.bits == 4
    assert (diagnosis.model.checkpoint.mismatched, diagnosis.model.checkpoint.altered) == (0, 0)


@pytest.mark.thorough
def test_rounded_real_numbers(float_folder: Path, tmp_path: Path) -> None:
    """Same names and types: the grid is told by the number of distinct values."""
    tensors, size, bits = dict(FLOATS), 64, 3
    for name in made.linear_names(FLOATS):
        x = made.from_bfloat16(FLOATS[f"{name}.weight"][1])
        back = made.dequantize(*made.quantize(x, bits, size, symmetric=True))
        tensors[f"{name}.weight"] = ("BF16", made.bfloat16(back))
    diagnosis, weights = compared(float_folder, fakes(tmp_path, tensors))
    # Three bits for 64 weights each leave little; without texts nothing says that this harms.
    assert [(cause.rules, cause.severity) for cause in diagnosis.causes] == [(("W046",), "low")]
    assert diagnosis.verdict == "healthy"
    facts = weights[PATIENT]
    assert (facts.format, facts.quantizer.bits, facts.group_size) == ("fake-quantized", bits, size)
    assert facts.dead_groups == 0


@pytest.mark.thorough
def test_real_numbers_without_a_grid(float_folder: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    tensors = dict(FLOATS)
    for name in made.linear_names(FLOATS):
        x = made.from_bfloat16(FLOATS[f"{name}.weight"][1])
        tensors[f"{name}.weight"] = ("BF16", made.bfloat16(x + 0.002 * random.normal(size=x.shape)))
    diagnosis, weights = compared(float_folder, fakes(tmp_path, tensors))
    facts = weights[PATIENT]
    assert (facts.format, facts.quantizer.bits, facts.groups) == (None, None, None)
    assert (facts.rounding.sqnr_db or 0.0) > 15
    assert diagnosis.model.quantized_share is None
    assert not {rule for rule, _ in found(diagnosis)} & {"S001", "W018"}


@pytest.mark.thorough
def test_strangers_and_swapped_arguments_are_refused(float_folder: Path, tmp_path: Path) -> None:
    quantized = fakes(tmp_path, made.quantized_model(made.language_model(seed=9), "gptq"), **made.configuration("gptq"))
    with pytest.raises(ModelError, match="do not belong together"):
        quantmedic.collect(float_folder, quantized, weights_only=True)
    with pytest.raises(ModelError, match="float checkpoint is quantized itself"):
        quantmedic.collect(quantized, float_folder, weights_only=True)


@pytest.mark.nightly
def test_threads_do_not_change_a_number(float_folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from quantmedic.collectors.from_checkpoint.layers import weight_slices

    quantized = fakes(tmp_path, made.quantized_model(FLOATS, "gptq"), **made.configuration("gptq"))
    one = quantmedic.collect(float_folder, quantized, threads=1, weights_only=True).record
    assert one == quantmedic.collect(float_folder, quantized, threads=4, weights_only=True).record
    monkeypatch.setattr(weight_slices, "SLICE", 64 * made.HIDDEN)
    in_slices = quantmedic.collect(float_folder, quantized, weights_only=True).record
    pairs = [(a, b) for a, b in zip(one.operators, in_slices.operators, strict=True) if a.weight.format]
    assert len(pairs) == len(made.linear_names(FLOATS))
    for a, b in pairs:
        assert a.weight.worst_group == b.weight.worst_group
        assert a.weight.rounding.mse == pytest.approx(b.weight.rounding.mse, rel=1e-12)


@pytest.mark.thorough
def test_what_no_checkpoint_has_does_not_apply(float_folder: Path, tmp_path: Path) -> None:
    """Images, searches and devices are no matter of the command; what its options give is asked for by these."""
    quantized = fakes(tmp_path, made.quantized_model(FLOATS, "gptq"), **made.configuration("gptq"))
    diagnosis, _ = compared(float_folder, quantized)
    assert {"S003", "D001", "M001", "R002", "W008"} <= {note.rule for note in diagnosis.not_applicable}
    texts = {note.rule: note.hint for note in diagnosis.not_judged}
    assert {"S008", "S045", "W030", "W031"} <= set(texts) and all("--tokens" in hint for hint in texts.values())
    judged = {note.rule for note in diagnosis.passed}
    assert {"S001", "S013", "W014", "W018"} <= judged and not {rule for rule in judged if rule[0] in "AD"}


def plain_sums(x: Any, y: Any, grid: Grid, starts: Any, tops: Any) -> Any:
    """What ``group_sums`` computes, in plain numpy."""
    first = starts[:-1]
    step, low, high = (np.repeat(part, np.diff(starts), axis=1) for part in grid)
    wide = x.astype(np.float64)
    d, on_grid = y - wide, np.clip(x, low, high)
    np.maximum(tops, np.abs(x).max(axis=0), out=tops)
    counts = (
        np.abs(y - on_grid) > MISPLACED_STEPS * step,
        np.abs(x - on_grid) > 0.5 * step,
        (y <= low).astype(np.float64) + (y >= high),
    )
    sums = (d, d * d, wide * d, wide**2, wide, wide**3, wide**4)
    columns = [np.add.reduceat(part, first, axis=1) for part in sums]
    for part in (x, y):
        columns += [np.minimum.reduceat(part, first, axis=1), np.maximum.reduceat(part, first, axis=1)]
    columns.append(np.maximum.reduceat(np.abs(y - x), first, axis=1))
    columns += [np.add.reduceat(part.astype(np.float64), first, axis=1) for part in counts]
    return np.stack([column.astype(np.float64) for column in columns], axis=2)


@examples(60)
@given(st.integers(1, 5), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 2**32), st.booleans())
def test_compiled_sums_are_those_of_numpy(rows: int, sizes: list[int], seed: int, without_grid: bool) -> None:
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    x = random.normal(size=(rows, starts[-1])).astype(np.float32)
    y = (x + 0.3 * random.normal(size=x.shape)).astype(np.float32)
    step = random.uniform(0.1, 0.3, (rows, len(sizes))).astype(np.float32)
    if without_grid:
        step[:] = np.nan
    grid = Grid(step, -5 * step, 5 * step)
    tops = [np.zeros(x.shape[1], np.float32) for _ in range(2)]
    mine, reference = (f(x, y, grid, starts, t) for f, t in ((group_sums, tops[0]), (plain_sums, tops[1])))
    np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-12)
    assert np.array_equal(tops[0], tops[1])


def test_a_damaged_file_is_said(float_folder: Path, tmp_path: Path) -> None:
    whole = made.write_file(tmp_path / "whole.safetensors", {"a.weight": ("F32", np.ones((64, 64), np.float32))})
    for content in (b"version https://git-lfs.github.com/spec/v1\n", whole.read_bytes()[:-100]):
        (tmp_path / "bad.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match="not a readable safetensors file"):
            quantmedic.collect(float_folder, tmp_path / "bad.safetensors", weights_only=True)


def test_an_index_does_not_lead_outside(float_folder: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    made.write_file(tmp_path / "secret.safetensors", {"a.weight": ("F32", np.ones((2, 2), np.float32))})
    folder = made.write_folder(tmp_path / "model", FLOATS)
    says = dict.fromkeys(["../secret.safetensors", "/etc/passwd", "a\\b.safetensors"], "outside of its folder")
    for name, said in {**says, "x" * 5000: "a shard is missing"}.items():
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
        with subtests.test(name[:30]), pytest.raises(ModelError, match=said):
            quantmedic.collect(float_folder, folder, weights_only=True)


def test_an_index_that_an_older_model_left_behind_is_told_from_a_missing_shard(
    float_folder: Path, tmp_path: Path
) -> None:
    """What saves a model in one file deletes the shards of another, and leaves its index."""
    folder = made.write_folder(tmp_path / "model", FLOATS)
    next(folder.glob("*.safetensors")).rename(folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"and model\.safetensors lies beside it") as error:
        quantmedic.collect(float_folder, folder, weights_only=True)
    assert "remove it" in error.value.help


def test_bad_folders_are_said(float_folder: Path, tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(QuantmedicError) as error:
            quantmedic.collect(float_folder, path, weights_only=True)
        return str(error.value)

    assert "no such checkpoint" in message(tmp_path / "nothing")
    assert "holds no .safetensors file" in message(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pickled weights could run any code" in message(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"")
    assert "weights_only=True is for language models" in message(tmp_path / "x.onnx")
    (tmp_path / "x.mlpackage").mkdir()
    assert "save the weights of both as safetensors" in message(tmp_path / "x.mlpackage")
    with pytest.raises(QuantmedicError, match=r"no \.safetensors file") as refused:
        open_checkpoint(tmp_path / "x.onnx")
    assert "two networks are compared by: quantmedic diagnose" in str(refused.value)
    folder = made.write_folder(tmp_path / "twice", FLOATS)
    next(folder.glob("*.safetensors")).unlink()
    assert "a shard is missing" in message(folder)
    index = folder / "model.safetensors.index.json"
    for text, expected in (
        ("{", "not a readable JSON file"),
        ("[]", "not a JSON object"),
        ("{}", "does not name the files"),
    ):
        index.write_text(text)
        assert expected in message(folder)
    index.unlink()
    file = next(folder.glob("*.safetensors"))
    (folder / "copy.safetensors").write_bytes(file.read_bytes())
    assert "two files hold a tensor of the same name" in message(folder)


def test_without_the_library_it_says_what_to_install(float_folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModelError, match=r"quantmedic\[weights\]"):
        quantmedic.collect(float_folder, float_folder, weights_only=True)


PEAK = """
import sys
from pathlib import Path
import quantmedic
quantmedic.collect(sys.argv[1], sys.argv[2], threads=1, weights_only=True)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read as Linux tells it")
def test_memory_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    """Peak of a process of its own for 4 and for 8 layers, 6 and 13 million weights."""
    peaks = []
    random = np.random.default_rng(0)
    x = (0.02 * random.normal(size=(1024, 1600))).astype(np.float32)
    parts = made.quantize(x, 4, 64, symmetric=False)
    layer = made.gptq("m", *parts, 4)
    for layers in (4, 4, 8):  # The first run may compile.
        names = [f"model.layers.{i}.mlp" for i in range(layers)]
        floats = {f"{name}.weight": ("BF16", made.bfloat16(x)) for name in names}
        packed = {f"{name}.{part.rpartition('.')[2]}": tensor for name in names for part, tensor in layer.items()}
        paths = [made.write_folder(tmp_path / f"{n}{layers}", t) for n, t in (("f", floats), ("q", packed))]
        command = [sys.executable, "-c", PEAK, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[2] <= 1.05 * peaks[1], peaks


def test_compiled_loops_are_kept_apart_from_the_source() -> None:
    """Files that pip does not know would survive an uninstall and hide the next install."""
    kept = Path(loops._fill_sums._cache.cache_path)
    assert not kept.is_relative_to(Path(loops.__file__).parent)


@pytest.mark.skipif(sys.platform == "win32", reason="no pipes")
def test_a_pipe_is_no_checkpoint(float_folder: Path, tmp_path: Path) -> None:
    """Reading it would never end."""
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        quantmedic.collect(float_folder, tmp_path, weights_only=True)
