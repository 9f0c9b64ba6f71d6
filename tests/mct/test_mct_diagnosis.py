"""Whole diagnoses of models by the real toolkit: its settings, its log folder and its own names in the advice."""

import re
from importlib.resources import files

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from model_compression_toolkit.logger import Logger  # noqa: E402

import quantmedic  # noqa: E402
from quantmedic import judge, load_case, load_rulebase, save_case  # noqa: E402
from quantmedic.collectors.from_settings.mct_log import read_mct_log  # noqa: E402
from quantmedic.engine.diagnosis.advice import advise  # noqa: E402
from quantmedic.engine.diagnosis.snippets import render_snippets  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402
from quantmedic.engine.rules.evaluate import Finding  # noqa: E402
from quantmedic.engine.rules.rule import Rule  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

BASE = load_rulebase()


@pytest.fixture
def pictures():
    """Two sets of smooth images with a little noise: calibration and validation."""
    generator = torch.Generator().manual_seed(1)

    def some(size: int):
        coarse = torch.randn(size, 3, 6, 6, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, size=(16, 16), mode="bicubic")
        return smooth + 0.1 * torch.randn(size, 3, 16, 16, generator=generator)

    sets = [[some(16) for _ in range(4)] for _ in range(2)]
    return [lambda batches=batches: ([batch] for batch in batches) for batches in sets]


def quantize(net, pictures, config, share: float | None = None):
    full = mct.core.pytorch_resource_utilization_data(net, pictures[0])
    target = mct.core.ResourceUtilization(weights_memory=share * full.weights_memory) if share else None
    model, _ = mct.ptq.pytorch_post_training_quantization(
        net, pictures[0], core_config=config, target_resource_utilization=target
    )
    return model


def collect(net, model, pictures, **given):
    return quantmedic.collect(net, model, representative=pictures[0], validation=pictures[1], **given)


def test_a_healthy_model_with_everything_told(net, pictures, log_folder) -> None:
    config = mct.core.CoreConfig()
    model = quantize(net, pictures, config)
    case = collect(net, model, pictures, core_config=config, mct_log=log_folder)
    diagnosis = judge(case)
    assert diagnosis.verdict == "healthy"
    assert [cause for cause in diagnosis.causes if cause.severity in ("medium", "high")] == []
    assert diagnosis.toolchain is not None and diagnosis.toolchain.name == "Sony MCT"
    assert case.record.notices == ()
    settings = case.record.model.settings
    assert (settings.shift_negative_ratio, settings.learned_rounding) == (0.05, False)
    assert case.record.model.search.unreachable is False, "the toolkit's own text log was read"


@pytest.mark.source("mct-preprocessing")
@pytest.mark.parametrize("factor", [30, 255])
@pytest.mark.parametrize("shown", ["proper", "calibrated-on"])
def test_thresholds_of_other_data_are_not_blamed_on_rounding_up(pictures, factor, shown) -> None:
    """The toolkit corrects biases by these data too, so that new ranges alone would heal nothing."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(16 * 144, 10)).eval()

    def too_large():
        return ([factor * batch[0]] for batch in pictures[0]())

    model = quantize(net, [too_large], mct.core.CoreConfig())
    representative = pictures[0] if shown == "proper" else too_large
    diagnosis = judge(quantmedic.collect(net, model, representative=representative, validation=pictures[1]))
    first = diagnosis.causes[0]
    assert first.cause == ("stale-calibration" if shown == "proper" else "preprocessing-mismatch")
    again = ("calibrate-again", "recalibrate-on-proper-data")  # Both sets are proper, so that either heals.
    assert first.remedies[0].id in (again if shown == "proper" else ("one-preprocessing",))
    assert first.predicted_gain_db > 10
    assert [cause.cause for cause in diagnosis.causes if "A013" in cause.rules] == []


class Classifier(torch.nn.Module):
    """Three convolutions and scores, trained on classes of smooth images."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 16, 16)
        layers = [(torch.nn.Conv2d(size, 16, 3, padding=1), torch.nn.ReLU()) for size in sizes]
        self.features = torch.nn.Sequential(*(layer for pair in layers for layer in pair))
        self.scores = torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scores(self.features(x).mean((2, 3)))

    def train_on(self, x: torch.Tensor) -> "Classifier":
        classes = (x.flatten(1) @ torch.randn(x[0].numel(), 10)).argmax(1)
        optimizer = torch.optim.Adam(self.parameters(), 3e-3)
        for _ in range(30):
            for part, wanted in zip(x.split(64), classes.split(64), strict=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self(part), wanted).backward()
                optimizer.step()
        return self.eval()


def smooth_images(size: int, generator: torch.Generator) -> torch.Tensor:
    coarse = torch.randn(size, 3, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(16, 16), mode="bicubic")
    return smooth + 0.1 * torch.randn(size, 3, 16, 16, generator=generator)


@pytest.mark.source("mct-outlier-removal")
def test_a_spike_in_both_sets_is_cut_off_although_the_summed_noise_grows() -> None:
    """The spike of one sample holds the summed noise: a threshold that leaves it out heals all other samples."""
    torch.manual_seed(0)
    generator, config = torch.Generator().manual_seed(1), mct.core.CoreConfig()
    net = Classifier().train_on(smooth_images(512, generator))
    given, judged = smooth_images(64, generator), smooth_images(256, generator)
    given[3, 1, 4, 5] = judged[7, 0, 9, 9] = 300.0
    sets = [lambda x=x: ([part] for part in x.split(16)) for x in (given, judged)]
    diagnosis = judge(collect(net, quantize(net, sets, config), sets, core_config=config))
    assert diagnosis.prescription is not None
    code = diagnosis.prescription.configurations[0].code
    assert "z_threshold=8" in code and "activation_bits" not in code, "a convolution reads the input: it takes 8 bits"


@pytest.mark.source("mct-shift-negative-tweaks")
def test_how_far_the_shift_is_from_acting(net, pictures, log_folder) -> None:
    model = quantize(net, pictures, mct.core.CoreConfig())
    case = quantmedic.collect(net, model, representative=pictures[0], mct_log=log_folder)
    log = read_mct_log(log_folder)
    tensors = {tensor.name: tensor for tensor in derive(case, BASE).tensors}
    for name in ("act", "gelu"):
        node = next(node for node in log.nodes if node.name == name)
        assert tensors[name].shift_excess == pytest.approx(-node.minimum / node.threshold / 0.05, rel=1e-4)
    assert tensors["gelu"].shift_excess > 1
    without = derive(quantmedic.collect(net, model, representative=pictures[0]), BASE)
    assert {tensor.shift_excess for tensor in without.tensors} == {None}, "without settings it is not judged"


@pytest.mark.source("mct-last-layer", "mct-last-layer-signs")
@pytest.mark.parametrize("weighting", ["AVG", "LAST_LAYER"])
def test_two_bits_in_the_last_layer(net, pictures, weighting) -> None:
    """The advice knows how the search was weighed, and names the layer as the toolkit does."""
    method = mct.core.MpDistanceWeighting[weighting]
    mixed = mct.core.MixedPrecisionQuantizationConfig(num_of_images=16, distance_weighting_method=method)
    config = mct.core.CoreConfig(mixed_precision_config=mixed)
    config.bit_width_config.set_manual_weights_bit_width(mct.core.network_editor.NodeNameFilter("fc"), 2, "weight")
    case = collect(net, quantize(net, pictures, config, 0.97), pictures, core_config=config)
    assert case.record.model.search.images == 16
    (cause,) = [cause for cause in judge(case).causes if "M001" in cause.rules]
    assert [layer.float_name for layer in cause.layers] == ["fc"]
    advised = {advice.id: advice for advice in cause.remedies}
    held = {withheld.id: withheld.because for withheld in cause.withheld}
    if weighting == "AVG":
        now = {row.fact: row.value for row in advised["last-layer-distance-weighting"].now}
        assert now["model.settings.distance_weighting"] == "AVG"
    else:
        assert "LAST_LAYER" in held["last-layer-distance-weighting"]
    found = advised["bit-width-override"]
    texts = zip(found.snippets, render_snippets(found, cause.rules), strict=True)
    (code,) = [text for snippet, text in texts if snippet.toolchain == "Sony MCT"]
    assert '"fc"' in code


def test_names_in_snippets_are_those_of_the_toolkit(net, pictures) -> None:
    """A folded layer is conv1 in the float model and conv1_bn in the toolkit's graph; relu carries its quantizer."""
    facts = derive(
        quantmedic.collect(net, quantize(net, pictures, mct.core.CoreConfig()), validation=pictures[1]), BASE
    )
    rule = {"id": "X001", "name": "any-rule", "cause": "any-cause", "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": "layer", "when": {"fact": "name", "known": True}, "remedies": ["keep-layers-float"]}
    (advice,), _ = advise([Finding(Rule.model_validate(rule), "conv1", "conv1", "", ())], BASE, facts)
    (code,) = [code for code in render_snippets(advice, ["X001"]) if "float_weights" in code]
    assert 'float_outputs = ["relu"]' in code
    assert 'float_weights = ["conv1_bn"]' in code


def test_a_log_of_another_model_is_said_and_its_settings_are_unknown(net, pictures, log_folder) -> None:
    model = quantize(net, pictures, mct.core.CoreConfig())
    Logger.LOG_PATH = None
    unlogged = quantize(net, [lambda: ([8 * b[0]] for b in pictures[0]())], mct.core.CoreConfig())
    case = collect(net, unlogged, pictures, mct_log=log_folder)
    (notice,) = [text for text in case.record.notices if "stale" in text]
    assert "gelu_post_add" in notice and "not judged" in notice, "on these data the toolkit shifts GELU"
    assert case.record.model.settings.z_threshold is None
    assert collect(net, model, pictures, mct_log=log_folder).record.model.settings.z_threshold == float("inf")


def test_the_example_of_the_manual(net, pictures, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = files("quantmedic.manuals").joinpath("general/mct.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names = {"mct": mct, "quantmedic": quantmedic, "model": net, "gen": pictures[0], "validation": pictures[1]}
    exec(compile(code, "mct.md", "exec"), names)
    Logger.LOG_PATH = None
    assert names["diagnosis"].verdict == "healthy"
    report = (tmp_path / "report" / "report.json").read_text(encoding="utf-8")
    assert '"z_threshold": 16.0' in report and '"unreachable": false' in report
    assert read_mct_log("mct_log").settings.z_threshold == 16


@pytest.mark.source("xquant-without-log")
def test_a_missing_log_folder_is_said(net, pictures, tmp_path) -> None:
    model = quantize(net, pictures, mct.core.CoreConfig())
    case = collect(net, model, pictures, mct_log=tmp_path / "nothing")
    assert any("nothing of MCT is missing" in notice for notice in case.record.notices)


def test_settings_are_kept_in_the_case_file(net, pictures, tmp_path) -> None:
    """Infinity, the default of z_threshold, included."""
    config = mct.core.CoreConfig()
    case = quantmedic.collect(net, quantize(net, pictures, config), validation=pictures[1], core_config=config)
    save_case(case, tmp_path / "case.zip")
    assert load_case(tmp_path / "case.zip").record.model.settings == case.record.model.settings
    assert case.record.model.settings.z_threshold == float("inf")


@pytest.mark.source("mct-bias-correction")
def test_a_correction_learned_on_few_samples_is_found_and_heals_without() -> None:
    """MCT's biases stay float and have no steps: what tells is the shift that is left, and the setting."""
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 8, 3, padding=1)
    pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 10))
    net = torch.nn.Sequential(first, torch.nn.ReLU(), second, pool).eval()
    few = torch.randn(2, 3, 16, 16) + torch.tensor([1.0, 0.0, -1.0]).reshape(1, 3, 1, 1)
    judged = torch.randn(32, 3, 16, 16)
    found = {}
    for corrected in (True, False):
        core = mct.core.CoreConfig(mct.core.QuantizationConfig(weights_bias_correction=corrected))
        core.bit_width_config.set_manual_weights_bit_width(mct.core.network_editor.NodeNameFilter("_0"), 2, "weight")
        quantized, _ = mct.ptq.pytorch_post_training_quantization(
            net, lambda: ([few] for _ in range(4)), core_config=core
        )
        case = quantmedic.collect(net, quantized, representative=few, validation=judged, core_config=core)
        found[corrected] = quantmedic.judge(case)
    rules = {
        corrected: {rule for cause in diagnosis.causes for rule in (*cause.rules, *(f.rule for f in cause.absorbs))}
        for corrected, diagnosis in found.items()
    }
    assert "W012" in rules[True] and "W012" not in rules[False]
    worst = {
        corrected: min(layer.validation.accumulated.sqnr_db or 0.0 for layer in diagnosis.layers)
        for corrected, diagnosis in found.items()
    }
    assert worst[False] > worst[True] + 1  # 10.2 and 7.3 dB
