"""The scripts of the page on experiments, run as printed against the real toolkit."""

import contextlib
import io
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from quantmedic.api.explain import explanation  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]


class Scorer(torch.nn.Module):  # type: ignore[misc]
    """Convolutions and scores, with every kind of layer that the scripts ask for."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.act1 = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.SiLU()
        self.conv2, self.act2 = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.GELU()
        self.conv3 = torch.nn.Conv2d(16, 8, 1)
        self.fc = torch.nn.Linear(8, 10)
        self.gain = gain
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.act1(self.conv1(x))
        b = self.act2(self.conv2(a))
        return self.fc(self.conv3(torch.cat([self.gain * a, b], 1)).mean((2, 3)))


def images(seed: int, count: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 12, 12, generator=generator) + torch.randn(count, 3, 1, 1, generator=generator)


def centred(net: torch.nn.Module) -> torch.nn.Module:
    """The network with outputs that tell samples apart."""
    with torch.no_grad():
        net.fc.bias -= net(images(9)).mean(0)
    return net


def said(word: str) -> str:
    """What explains a word, without line breaks."""
    return " ".join(explanation(word).split())


class Printed:
    """What a script of the manual printed, and the names that it left."""

    def __init__(self, word: str, net: torch.nn.Module, seen: torch.Tensor, judged: torch.Tensor) -> None:
        (code,) = re.findall(r"^```python\n(.*?)^```", explanation(word), re.M | re.S)
        with torch.no_grad():
            judges = [(part, net(part).argmax(1)) for part in judged.split(16)]
        self.names: dict[str, Any] = {
            "model": net,
            "gen": lambda: ([part] for part in seen.split(16)),
            "validation": judges,
        }
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, f"{word}.py", "exec"), self.names)
        self.text = said.getvalue()

    def figures(self, variant: str) -> list[str]:
        """Output SQNR, gain over the first variant, how it compares, and seconds where the script prints them."""
        (line,) = [line for line in self.text.splitlines() if line.startswith(f"{variant}: ")]
        return line.removeprefix(f"{variant}: ").split(", ")

    def gain(self, variant: str) -> float:
        """What a variant gains in dB over the first one."""
        return float(self.figures(variant)[1].removesuffix(" dB"))

    def seconds(self, variant: str) -> float:
        return float(self.figures(variant)[3].removesuffix(" s"))


def spiked(seed: int) -> torch.Tensor:
    found = images(seed)
    found[0, 0, 0, 0] = 500.0
    return found


@pytest.mark.source("mct-outlier-removal", "mct-outlier-values", "mct-scripts")
def test_z_threshold() -> None:
    found = Printed("z_threshold", centred(Scorer()), spiked(1), images(2))
    assert found.gain("z_threshold=8") > 10, found.text
    assert all(found.figures(f"z_threshold={value}")[2] == "better" for value in (5, 8, 12, 20)), found.text


class Offsets(torch.nn.Module):  # type: ignore[misc]
    """Two layers whose large offsets cancel where they are added: their outputs need more than 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (torch.nn.Conv2d(3, 8, 3, padding=1) for _ in range(2))
        self.act = torch.nn.SiLU()
        self.fc = torch.nn.Linear(8, 10)
        with torch.no_grad():
            self.left.bias[0] += 200
            self.right.bias[0] -= 200
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.act(self.left(x) + self.right(x)).mean((2, 3)))


@pytest.mark.source("mct-sixteen-bit-experiment", "mct-network-editor")
def test_sixteen_bits_point_to_the_layers_to_blame() -> None:
    found = Printed("activation_n_bits", centred(Offsets()), images(1), images(2))
    assert found.gain("16 bits: Conv2d") > 6, found.text
    assert all(abs(found.gain(f"16 bits: {kind}")) < 3 for kind in ("SiLU", "GELU", "Linear", "cat")), found.text
    assert "for debugging" in said("activation_n_bits")


class Joined(torch.nn.Module):  # type: ignore[misc]
    """What reads the concatenation takes the wide operand off again, and hears the noise of its grid."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(3, 8, 1)
        self.mixed, self.fc = torch.nn.Conv2d(16, 8, 1), torch.nn.Linear(8, 10)
        with torch.no_grad():
            self.wide.weight *= 64
            self.mixed.weight[:, :8] /= 6400
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.mixed(torch.cat([self.wide(x), self.narrow(x)], 1)).mean((2, 3)))


@pytest.mark.source(
    "mct-network-editor",
    "mct-unbalanced-concatenation",
    "mct-concatenation-parameters",
    "mct-editor-debugging",
    "mct-editor-filters",
)
def test_the_network_editor_finds_a_concatenation() -> None:
    found = Printed("network-editor", centred(Joined()), images(1), images(2))
    ratios = dict(re.findall(r"^cat: (\w+) is ([\d.]+) times narrower", found.text, re.M))
    assert float(ratios["wide"]) == 1 and float(ratios["narrow"]) > 16, found.text
    assert found.gain("concatenations in float") > 3, found.text
    assert "For debugging only" in said("network-editor")
    assert "`NodeNameScopeFilter`" in said("network-editor")


class Shifting(torch.nn.Module):  # type: ignore[misc]
    """GELU, which a convolution reads and nothing else, on channels that differ in size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.act = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GELU()
        self.conv2, self.fc = torch.nn.Conv2d(8, 8, 1), torch.nn.Linear(8, 10)
        gains = 10 ** torch.linspace(-1, 0.4, 8).reshape(-1, 1, 1, 1)
        with torch.no_grad():
            self.conv1.weight *= gains
            self.conv2.weight /= gains.reshape(1, -1, 1, 1)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv2(self.act(self.conv1(x))).mean((2, 3)))


@pytest.mark.source(
    "mct-shift-negative", "mct-shift-negative-tweaks", "mct-shift-recalculation", "mct-shift-params-search"
)
def test_the_shift_acts_at_a_larger_ratio() -> None:
    found = Printed("shift_negative_activation_correction", centred(Shifting()), 0.3 * images(1), 0.3 * images(2))
    assert found.gain("as it is") == 0, f"the smallest value is beyond 0.05 of the threshold: {found.text}"
    assert found.gain("ratio 0.3") > 0.5, found.text
    assert found.gain("ratio 0.3, search") > 0.5, found.text
    assert "fails on an assertion" in said("shift_negative_threshold_recalculation")


@pytest.mark.source("mct-bias-correction", "mct-bias-correction-no-data", "mct-bias-correction-more-data")
def test_bias_correction_off() -> None:
    """Learned on data of another mean, the correction is worse than none."""
    shifted = 0.2 * images(1) + 3
    found = Printed("weights_bias_correction", centred(Scorer()), shifted, 0.2 * images(2))
    assert found.gain("off") > -1, found.text
    assert "keep it off" in said("bias-correction")
    assert "improve the set" in said("bias-correction")
    assert "leave it off" in said("weights_bias_correction")


@pytest.mark.source(
    "mct-error-method", "mct-error-method-time", "mct-error-method-default", "mct-error-method-per-layer"
)
def test_error_methods() -> None:
    found = Printed("activation_error_method", centred(Scorer()), images(1), images(2))
    assert len({found.figures(method)[0] for method in ("MSE", "NOCLIPPING", "MAE", "KL")}) == 4, found.text
    assert "run long" in said("activation_error_method")
    assert "heal a layer and harm another" in said("threshold-error-method")
    assert "QuantizationErrorMethod.MSE)` (default)" in said("threshold-error-method")


@pytest.mark.source("mct-error-method-unusual")
def test_another_error_method_for_unusual_activations() -> None:
    """Softplus and ELU: the pages hint at other methods, and the script tells which one is better."""
    net = Scorer()
    net.act1, net.act2 = torch.nn.Softplus(), torch.nn.ELU()
    found = Printed("activation_error_method", centred(net), images(1), images(2))
    assert len({found.figures(method)[0] for method in ("MSE", "NOCLIPPING", "MAE")}) > 1, found.text
    for word in ("activation_error_method", "threshold-error-method"):
        assert "ELU, Softplus, Mish" in said(word)


@pytest.mark.source("mct-configuration-overwrite", "mct-what-if-lower-bits", "mct-overwrite-format")
def test_lower_bits_one_layer_after_another() -> None:
    found = Printed("configuration_overwrite", centred(Scorer()), images(1), images(2))
    assert found.names["names"] == ["conv1", "conv2", "conv3", "fc"]
    layer = found.names["quantize"]([0, 1, 2, 0])[0]
    bits = [layer.get_submodule(name).weights_quantizers["weight"].num_bits for name in found.names["names"]]
    assert bits == [8, 4, 2, 8], "an index is a place among the candidates, the most bits first"
    assert all(found.gain(f"{name}: index 1") < 0.5 for name in found.names["names"]), found.text
    with pytest.raises(IndexError):
        found.names["quantize"]([0, 1])
    assert "acts only with a `target_resource_utilization`" in said("configuration_overwrite")


@pytest.mark.source(
    "mct-mixed-precision",
    "mct-mixed-precision-images",
    "mct-last-layer",
    "mct-hessian-scores",
    "mct-mixed-precision-target",
    "mct-search-time",
)
def test_ways_to_search_for_bit_widths() -> None:
    found = Printed("num_of_images", centred(Scorer()), images(1), images(2))
    ways = [f"search{how}" for how in ("", ", 64 images", ", last layer", ", Hessian")]
    assert all(found.gain(way) > -1 and found.seconds(way) > 0 for way in ways), found.text
    assert "target_resource_utilization=" in said("num_of_images")


@pytest.mark.source("mct-gptq", "mct-gptq-hyperparameters", "mct-gptq-mixed-precision")
def test_fine_tuning_after_a_search() -> None:
    found = Printed("get_pytorch_gptq_config", centred(Scorer()), images(1), images(2))
    tuned = [found.gain(f"GPTQ, 20 epochs{how}") for how in ("", ", slower", ", less regularization")]
    assert max(tuned) > 0.5 and len(set(tuned)) == 3, found.text


NAMES = (
    ("z_threshold", "outlier-removal", "Outlier Removal"),
    ("shift_negative_activation_correction", "shift_negative_ratio", "shift-negative-activation"),
    ("network-editor", "Network editor", "EditRule"),
    ("configuration_overwrite", "bit-width-configuration-overwrite"),
    ("num_of_images", "use_hessian_based_scores", "distance_weighting_method"),
    ("mixed-precision", "MixedPrecisionQuantizationConfig"),
    ("weights_bias_correction", "bias-correction-on-and-off"),
    ("activation_error_method", "error methods of activations"),
    ("representative-dataset-size-and-diversity", "representative-data"),
    ("representative-and-validation-dataset-mismatch", "preprocessing"),
    ("unbalanced-concatenation", 'unbalanced "concatenation"', "G001"),
    ("mixed-precision-with-model-output-loss-objective", "M001"),
    ("target_resource_utilization", "unreachable-resource-target"),
    ("gptq", "gradient-based-post-training-quantization"),
    ("threshold_quantize_error", "threshold_degrade_layer_ratio"),
)


@pytest.mark.source("mct-titles")
@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[0])
def test_titles_and_options_lead_to_one_page(names: tuple[str, ...]) -> None:
    assert len({explanation(name).partition("\n")[0] for name in names}) == 1
