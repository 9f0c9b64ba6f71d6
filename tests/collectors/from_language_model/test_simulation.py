"""Activations and caches that are quantized while the model runs: numbers equal those of whole models with hooks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.tiers import others_nightly
from hypothesis import given

pytest.importorskip("transformers")

import torch
from builders import activation_schemes as acts
from builders import language_models as lm
from builders.strange_configurations import strange_configurations
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.from_language_model.schemes import UnknownSchemeError, cache_grid, input_schemes
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.case.facts import LanguageFacts
from quantmedic.reports.context import build_context
from quantmedic.reports.write import render_markdown

pytestmark = pytest.mark.thorough

FLOAT8 = acts.Asked(acts.FLOAT8_TENSOR, acts.FLOAT8_TENSOR, 0.01, (0.02, 0.01))
#: What is asked for, and the same as hooks of a whole model; the tolerance is for codes that the last digit decides.
ASKED: dict[str, tuple[acts.Asked, acts.Rounder | None, tuple[acts.Rounder, acts.Rounder] | None, float]] = {
    "int8 by token": (acts.Asked(acts.INT8_TOKENS), acts.int8_tokens, None, 0.02),
    "float8 stored": (
        FLOAT8,
        acts.float8_with(0.01),
        (acts.float8_with(0.02), acts.float8_with(0.01)),
        1e-4,
    ),
    "int8 cache that cuts": (
        acts.Asked(cache=acts.INT8_TENSOR, cache_scales=(0.01, 0.003)),
        None,
        (acts.int8_with(0.01), acts.int8_with(0.003)),
        1e-4,
    ),
}


def write_ids(path: Path, ids: Any) -> Path:
    np.savez(path, ids=ids)
    return path


def drawn(texts: int = 3, length: int = 24) -> Any:
    return np.random.default_rng(1).integers(3, lm.VOCABULARY, (texts, length))


#: Each with another way to make inputs, keys and values.
OF_EACH_COMMIT = [(name, "float8 stored") for name in ("Phi3", "GPT-2")]
OF_EACH_COMMIT += [("Llama", title) for title in ("int8 by token", "int8 cache that cuts")]
OTHERS = [(name, "float8 stored") for name in ("Llama", "Qwen3", "Gemma2", "Mixtral")]


@pytest.mark.parametrize("architecture, title", others_nightly([*OF_EACH_COMMIT, *OTHERS], *OF_EACH_COMMIT))
def test_figures_are_those_of_whole_models_with_hooks(architecture: str, title: str, tmp_path: Path) -> None:
    asked, inputs, caches, tolerance = ASKED[title]
    floats = lm.saved(lm.random_model(architecture), tmp_path / "float")
    quantized = acts.write_quantized(floats, tmp_path / "quantized", asked)
    ids = drawn()
    language, metric = run_language_models((floats, quantized), TextRun(write_ids(tmp_path / "ids.npz", ids)))
    sick = acts.hooked(acts.with_int8_weights(floats), inputs, caches)
    wanted = lm.expected(lm.opened(floats), sick, ids)
    assert language.kl_mean == pytest.approx(wanted["kl_mean"], rel=tolerance)
    assert metric.quantized_value == pytest.approx(wanted["quantized"], rel=tolerance / 10)
    assert language.not_simulated is None
    with_float = acts.hooked(acts.with_int8_weights(floats), None, caches)
    if inputs is not None:
        left = lm.expected(lm.opened(floats), with_float, ids)["kl_mean"]
        assert language.kl_float_activations == pytest.approx(left, rel=1e-2), "what is called tried was carried out"
    if caches is not None:
        left = lm.expected(lm.opened(floats), acts.hooked(acts.with_int8_weights(floats), inputs), ids)["kl_mean"]
        assert language.kl_float_cache == pytest.approx(left, rel=1e-3)


GROUPS = {"num_bits": 8, "type": "float", "strategy": "group", "dynamic": True}


def group(scheme: Any, target: str = "Linear") -> dict[str, Any]:
    """A group of layers whose inputs are quantized so."""
    return {"targets": [target], "input_activations": scheme}


def inputs_of(**scheme: Any) -> dict[str, Any]:
    return {"config_groups": {"a": group(scheme)}}


STORED, POWERS = "float8 per tensor, stored scales", "scales made while running, powers of two"
MIXED = {"model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"}}
#: Configurations, the grid of an input, and that of the cache.
SETTINGS: list[tuple[dict[str, Any], str, str]] = [
    ({"quant_method": "gptq", "bits": 4}, "None", "None"),
    (
        {**inputs_of(**acts.INT8_TOKENS), "kv_cache_scheme": acts.FLOAT8_TENSOR},
        "int8 per token, scales made while running",
        STORED,
    ),
    ({"config_groups": {"a": group(acts.INT8_TOKENS), "b": group(None, "re:.*q_proj")}}, "None", "None"),
    # MXFP4 of an older release, MXFP8, and groups of float8 with scales of any size
    (inputs_of(**GROUPS | {"num_bits": 4}, group_size=32), f"float4 per group of 32, {POWERS}", "None"),
    (inputs_of(**GROUPS, group_size=32, scale_dtype="torch.uint8"), f"float8 per group of 32, {POWERS}", "None"),
    (inputs_of(**GROUPS, group_size=32), "float8 per group of 32, scales made while running", "None"),
    ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, STORED, STORED),
    (
        {"quant_algo": "NVFP4", "kv_cache_quant_algo": None},
        "float4 per group of 16, scales made while running, float8 times a stored one",
        "None",
    ),
    ({"quant_algo": "MXFP8"}, f"float8 per group of 32, {POWERS}", "None"),
    ({"quant_algo": "W4A8_NVFP4_FP8"}, STORED, "None"),
    ({"quant_algo": "MIXED_PRECISION", "quantized_layers": MIXED}, STORED, "None"),
    (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "float8 per group of 128, scales made while running",
        "None",
    ),
]


def test_configurations_are_read() -> None:
    layer = "model.layers.0.self_attn.q_proj"
    for settings, inputs, cache in SETTINGS:
        found = str(input_schemes(settings).grid_of(layer)), str(cache_grid(settings))
        assert found == (inputs, cache), settings


def test_schemes_that_are_not_known_are_said(subtests: pytest.Subtests) -> None:
    for settings, says in (
        ({"quant_method": "torchao"}, "scheme of torchao"),
        ({"quant_method": "fp8", "activation_scheme": "odd"}, "activation_scheme odd"),
        (inputs_of(num_bits=8, type="float", strategy="block"), "block of 8 bits"),
        (inputs_of(**GROUPS | {"num_bits": 4, "group_size": 16}), "groups of 16"),
        (inputs_of(**GROUPS | {"type": "int"}), "int, in groups"),
    ):
        with subtests.test(says), pytest.raises(UnknownSchemeError, match=says):
            input_schemes(settings).grid_of("model.layers.0.self_attn.q_proj")
    for cache in ({"kv_cache_quant_algo": "FP3"}, {"kv_cache_scheme": {"num_bits": None}}):
        with subtests.test(**cache), pytest.raises(UnknownSchemeError):
            cache_grid(cache)


@given(strange_configurations())
def test_no_configuration_is_an_accident(settings: dict[str, Any]) -> None:
    for ask in (lambda: input_schemes(settings).grid_of("model.layers.0.mlp.down_proj"), lambda: cache_grid(settings)):
        try:
            assert ask() is None or str(ask())
        except UnknownSchemeError as why:
            assert str(why)


def run(folder: Path, asked: acts.Asked, edit: Any = None) -> LanguageFacts:
    floats = lm.saved(lm.random_model("Llama"), folder / "float")
    quantized = acts.write_quantized(floats, folder / "quantized", asked)
    if edit is not None:
        edit(quantized)
    return run_language_models((floats, quantized), TextRun(write_ids(folder / "ids.npz", drawn())))[0]


def test_what_cannot_be_simulated_is_said_and_left_in_float(tmp_path: Path) -> None:
    scheme = {**acts.FLOAT8_TENSOR, "strategy": "block"}
    language = run(tmp_path / "unknown", acts.Asked(scheme, {**acts.INT8_TENSOR, "symmetric": False}))
    assert language.cache is None and language.activations_gain is None and language.cache_gain is None
    said = language.not_simulated or ""
    assert "inputs of 28 of the layers: block of 8 bits, float" in said and "K/V cache: K/V cache of int8" in said
    groups = run(tmp_path / "groups", acts.Asked({**GROUPS, "group_size": 48}))
    assert "which its channels are no multiple of" in (groups.not_simulated or "")
    missing = run(tmp_path / "missing", acts.Asked(acts.FLOAT8_TENSOR))
    assert "no input_scale of one number is stored" in (missing.not_simulated or "")
    assert language.activations is groups.activations is missing.activations is None


def test_scales_of_the_cache_that_are_missing_are_one(tmp_path: Path) -> None:
    missing = run(tmp_path / "missing", acts.Asked(cache=acts.INT8_TENSOR))
    of_one = run(tmp_path / "one", acts.Asked(cache=acts.INT8_TENSOR, cache_scales=(1.0, 1.0)))
    assert missing.kl_mean == of_one.kl_mean and missing.kl_mean != missing.kl_float_cache


def test_noise_of_a_block_is_divided_by_what_makes_it(tmp_path: Path) -> None:
    """Each source alone, on the float model's values, by running whole models with one block changed."""
    language = run(tmp_path, FLOAT8)
    floats, ids = lm.opened(tmp_path / "float"), torch.from_numpy(drawn())
    wanted = {}
    for title, inputs, caches in (
        ("activation_noise", acts.float8_with(0.01), None),
        ("cache_noise", None, (acts.float8_with(0.02), acts.float8_with(0.01))),
    ):
        sick = acts.hooked(lm.opened(tmp_path / "float"), inputs, caches)
        with torch.inference_mode():
            states = [model(ids, output_hidden_states=True).hidden_states[1].double() for model in (floats, sick)]
        wanted[title] = float((((states[1] - states[0]) ** 2).sum(-1) / (states[0] ** 2).sum(-1)).mean())
    block = language.blocks[0]
    assert block.activation_noise == pytest.approx(wanted["activation_noise"], rel=1e-3)
    assert block.cache_noise == pytest.approx(wanted["cache_noise"], rel=1e-3)


def sound_scales(folder: Path) -> tuple[float, float, float]:
    """Scales that cover all inputs, keys and values of the model on its texts, in steps of 127."""
    model, ids = lm.opened(folder), torch.from_numpy(np.load(folder.parent / "ids.npz")["ids"])
    found = [0.0, 0.0, 0.0]

    def see(place: int, values: Any) -> None:
        found[place] = max(found[place], float(values.abs().max()) / 127)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in name:
            module.register_forward_pre_hook(lambda _, args: see(0, args[0]))
    with torch.inference_mode():
        outputs = model(ids, use_cache=True)
    for layer in (getattr(outputs, "cache", None) or outputs.past_key_values).layers:
        see(1, layer.keys)
        see(2, layer.values)
    return found[0], found[1], found[2]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is sure of what it says, and its texts."""
    folder = tmp_path_factory.mktemp("patient")
    model = lm.random_model("Llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    lm.saved(model, folder / "float")
    write_ids(folder / "ids.npz", lm.spoken(model, 16, 48))
    return folder


@pytest.fixture(scope="module")
def sound(patient: Path) -> tuple[float, float, float]:
    return sound_scales(patient / "float")


def judged(patient: Path, folder: Path, asked: acts.Asked) -> Any:
    quantized = acts.write_quantized(patient / "float", folder / "quantized", asked)
    return quantmedic.diagnose(patient / "float", quantized, tokens=patient / "ids.npz")


def healed_by_prescription(found: Any, patient: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What becomes of the copy that the prescription writes; the checkpoint stays as it is."""
    before = {path.name: path.read_bytes() for path in (folder / "quantized").iterdir()}
    given = found.prescription
    assert given is not None
    (code,) = [each.code for each in given.configurations if each.language == "python"]
    monkeypatch.chdir(folder)
    exec(compile(code, "prescription.py", "exec"), {})
    assert before == {path.name: path.read_bytes() for path in (folder / "quantized").iterdir()}
    copy = folder / "quantized-new"
    return quantmedic.diagnose(patient / "float", copy, tokens=patient / "ids.npz")


@pytest.mark.nightly
def test_scales_of_the_cache_that_cut_are_named_and_written_anew(
    patient: Path, sound: tuple[float, float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the keys are off; what the prescription writes makes the model healthy."""
    _, keys, values = sound
    found = judged(patient, tmp_path, acts.Asked(cache=acts.INT8_TENSOR, cache_scales=(keys / 16, values)))
    assert found.verdict == "degraded" and found.causes[0].cause == "kv-scales-unfit", found.causes
    assert "coarse-weights-everywhere" not in {cause.cause for cause in found.causes}
    language = found.model.language
    assert language.cache_block.key_clipped > 0.01 and language.cache_block.value_clipped == 0
    assert language.cache_scales and all(name.endswith("k_scale") for name in language.cache_scales)
    assert language.cache_scales_off == len(language.cache_scales)
    for name, needed in language.cache_scales.items():
        assert language.cache_scales_stored[name] == pytest.approx(keys / 16, rel=1e-3)
        assert keys / 8 < needed <= keys * 1.5
    assert "key" in found.causes[0].message and found.causes[0].remedies[0].id == "write-kv-scales"
    healed = healed_by_prescription(found, patient, tmp_path, monkeypatch)
    assert healed.verdict == "healthy" and "kv-scales-unfit" not in {cause.cause for cause in healed.causes}


def forget_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def test_stored_scales_without_a_configuration_are_said(tmp_path: Path) -> None:
    """Nor does a configuration that leaves inputs in float say what their scales are for; weights alone need none."""
    for title, asked, said in (
        (
            "inputs",
            acts.Asked(acts.FLOAT8_TENSOR, scale=0.01),
            "input_scale and 27 more), and no configuration says how",
        ),
        ("cache", acts.Asked(cache=acts.INT8_TENSOR, cache_scales=(0.01, 0.01)), "scales of the K/V cache are stored"),
    ):
        language = run(tmp_path / title, asked, forget_config)
        assert said in (language.not_simulated or "") and language.scales_unsaid, title
        assert language.activations is None and language.cache is None, title
    in_float = run(tmp_path / "float", acts.Asked(scale=0.01))
    assert "scales of inputs are stored" in (in_float.not_simulated or "")
    alone = run(tmp_path / "alone", acts.Asked(), forget_config)
    assert alone.not_simulated is None and alone.scales_unsaid == 0


def kept_budget(folder: Path, most: float) -> Path:
    """A policy whose budget is kept."""
    budget = f'[[check.budget]]\nmetric = "kl"\nmax = {most}\n'
    (folder / "quantmedic.toml").write_text(f'[check]\nfail_on = {{severity = "never"}}\n{budget}')
    return folder / "quantmedic.toml"


def test_what_was_not_simulated_leaves_verdict_and_gate_open(
    patient: Path, sound: tuple[float, float, float], tmp_path: Path
) -> None:
    """The weights alone are sound, and budgets are kept: neither says anything of activations."""
    asked = acts.Asked(acts.INT8_TENSOR, None, sound[0])
    quantized = acts.write_quantized(patient / "float", tmp_path / "quantized", asked)
    forget_config(quantized)
    words = ["--tokens", patient / "ids.npz", "--config", kept_budget(tmp_path, 5.0), "-o", tmp_path / "r"]
    done = CliRunner().invoke(cli, ["check", *map(str, (patient / "float", quantized, *words))])
    assert done.exit_code == 3 and "INSUFFICIENT_DATA" in done.output, done.output
    assert "no config.json" in done.output and "left in float" in done.output
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert report["verdict"] == "undecided" and report["causes"][0]["rules"] == ["S056"]
    assert report["causes"][0]["remedies"][0]["id"] == "give-quantization-config"


def test_a_proven_loss_does_not_hide_what_was_not_simulated(
    patient: Path, sound: tuple[float, float, float], tmp_path: Path
) -> None:
    asked = acts.Asked(acts.INT8_TENSOR, {**acts.INT8_TENSOR, "symmetric": False}, sound[0] * 64)
    quantized = acts.write_quantized(patient / "float", tmp_path / "quantized", asked)
    case = quantmedic.collect(patient / "float", quantized, tokens=patient / "ids.npz")
    found = quantmedic.check(case, kept_budget(tmp_path, 50.0))
    assert found.check.exit_code == 3
    assert found.verdict == "degraded" and any("S056" in cause.rules for cause in found.causes)


def test_one_text_leaves_verdict_and_gate_open(patient: Path, tmp_path: Path) -> None:
    quantized = acts.write_quantized(patient / "float", tmp_path / "quantized", acts.Asked())
    one = write_ids(tmp_path / "one.npz", np.load(patient / "ids.npz")["ids"][:1, :2])
    found = quantmedic.check(quantmedic.collect(patient / "float", quantized, tokens=one))
    assert found.check.exit_code == 3
    assert found.verdict == "undecided" and found.undecided.cause == "one-text-alone"
    told = render_markdown(build_context(found, {}))
    assert "one text has no interval" in told and "some 20 are a beginning" in told


def largest_inputs(patient: Path) -> dict[str, float]:
    """Largest magnitude of the inputs of each matrix of the blocks on the first four texts."""
    model, ids = lm.opened(patient / "float"), torch.from_numpy(np.load(patient / "ids.npz")["ids"][:4])
    found: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in name:
            module.register_forward_pre_hook(
                lambda _, args, own=name: found.update({own: float(args[0].abs().max())})  # type: ignore[misc]
            )
    with torch.inference_mode():
        model(ids)
    return found


@pytest.mark.nightly
def test_scales_of_inputs_that_cut_are_named_and_written_anew(
    patient: Path, sound: tuple[float, float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(patient, tmp_path, acts.Asked(acts.INT8_TENSOR, scale=sound[0] / 32))
    assert found.causes[0].cause == "activation-scales-too-small", found.causes
    assert found.model.language.activation_block.input_layer in found.causes[0].message
    language, inputs = found.model.language, largest_inputs(patient)
    for name, largest in inputs.items():
        if (needed := language.input_scales.get(f"{name}.input_scale")) is not None:
            assert needed == pytest.approx(largest / 127, rel=0.01)
    assert len(inputs) / 2 < len(language.input_scales) == language.input_scales_off
    assert found.causes[0].remedies[0].id == "write-input-scales"
    healed = healed_by_prescription(found, patient, tmp_path, monkeypatch)
    assert healed.model.language.kl_mean < found.model.language.kl_mean / 4
    assert "activation-scales-too-small" not in {cause.cause for cause in healed.causes}


def test_inverted_scales_of_nvfp4_are_named_as_they_are_stored(
    patient: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of down_proj are 12 times too large a number, so that the scale is too small."""
    scheme = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
    quantized = acts.write_quantized(patient / "float", tmp_path / "quantized", acts.Asked(scheme))
    inputs = largest_inputs(patient)
    for file in quantized.glob("*.safetensors"):
        tensors = load_file(file)
        for name in inputs.keys() & {own.removesuffix(".weight") for own in tensors}:
            wrong = 12 if name.endswith("down_proj") else 1
            tensors[f"{name}.input_global_scale"] = np.array([wrong * 6 * 448 / inputs[name]], np.float32)
        save_file(tensors, file, metadata={"format": "pt"})
    found = quantmedic.diagnose(patient / "float", quantized, tokens=patient / "ids.npz")
    language = found.model.language
    wanted = {f"{name}.input_global_scale" for name in inputs if name.endswith("down_proj")}
    assert found.causes[0].cause == "activation-scales-too-small" and set(language.input_scales) == wanted
    for tensor, needed in language.input_scales.items():
        assert needed == pytest.approx(6 * 448 / inputs[tensor.removesuffix(".input_global_scale")], rel=0.01)
    healed = healed_by_prescription(found, patient, tmp_path, monkeypatch)
    assert healed.model.language.kl_mean < found.model.language.kl_mean / 2
    assert "activation-scales-too-small" not in {cause.cause for cause in healed.causes}


def test_scales_of_activations_that_are_far_too_large_are_named(
    patient: Path, sound: tuple[float, float, float], tmp_path: Path
) -> None:
    found = judged(patient, tmp_path, acts.Asked(acts.INT8_TENSOR, scale=sound[0] * 64))
    block = found.model.language.activation_block
    assert found.causes[0].cause == "activation-scales-too-large", found.causes
    assert (block.input_scale_ratio or 0) > 32 and block.input_clipped == 0


def test_activations_of_four_bits_are_named(patient: Path, tmp_path: Path) -> None:
    found = judged(patient, tmp_path, acts.Asked({**acts.INT8_TOKENS, "num_bits": 4}))
    assert found.causes[0].cause == "coarse-activations", found.causes


def test_a_sound_scheme_is_healthy(patient: Path, sound: tuple[float, float, float], tmp_path: Path) -> None:
    found = judged(patient, tmp_path, acts.Asked(acts.INT8_TOKENS, acts.INT8_TENSOR, cache_scales=sound[1:]))
    assert found.verdict == "healthy" and not [cause for cause in found.causes if cause.is_serious]
    assert any("inputs of layers were quantized (int8 per token" in notice for notice in found.warnings)
