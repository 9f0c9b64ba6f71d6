"""Prescriptions for MCT: nothing in force is lost, and the printed text heals when it is executed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from quantmedic import collect, load_rulebase  # noqa: E402
from quantmedic.collectors.data.batches import Batch  # noqa: E402
from quantmedic.collectors.from_torch.torch_inputs import TorchData  # noqa: E402
from quantmedic.collectors.from_torch.torch_models import TorchModels, open_torch_models  # noqa: E402
from quantmedic.collectors.measure.models import Edited  # noqa: E402
from quantmedic.engine.case.records import Case  # noqa: E402
from quantmedic.engine.case.settings_in_force import SettingsInForce  # noqa: E402
from quantmedic.engine.diagnosis.advice import advise_on  # noqa: E402
from quantmedic.engine.diagnosis.prescription import complete_code  # noqa: E402
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force  # noqa: E402
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet  # noqa: E402
from quantmedic.engine.errors import ModelError  # noqa: E402
from quantmedic.engine.formulas.change import Targets  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force  # noqa: E402
from quantmedic.engine.rules.toolchain_options import mark_changes, merge_all, write  # noqa: E402
from quantmedic.trials.from_torch.torch_remedies import EXECUTORS  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

BASE = load_rulebase()
TOOLCHAIN = find_toolchain("mct", BASE.toolchains)
((FORM, SPEC),) = TOOLCHAIN.forms.items()
(EXECUTOR,) = [executor for executor in EXECUTORS if executor.toolchain == "Sony MCT"]
NOCLIPPING = mct.core.QuantizationErrorMethod.NOCLIPPING


def images(seed: int, count: int = 32) -> Any:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Patient:
    """A float module with its quantized counterpart, and the samples for both."""

    models: TorchModels
    shown: SettingsInForce
    calibration: Any
    judged: Any
    case: Case

    def execute(self, *options: Any, code: str = "") -> Edited:
        batches = [self.batch(part) for part in self.calibration.split(8)]
        return EXECUTOR.execute(self.models, self.script(*options, code=code), batches, None)

    def script(self, *options: Any, code: str = "") -> str:
        before = options_in_force(TOOLCHAIN, FORM, self.shown)
        merged = merge_all([*options, before])
        call = write(FORM, SPEC, mark_changes({key: merged[key] for key in dict.fromkeys([*before, *merged])}, before))
        return complete_code(f"{code}\n{call}", "python", TOOLCHAIN)

    def batch(self, x: Any) -> Batch:
        return Batch({"x": x.numpy()})

    def noise(self, run: Callable[[Batch], list[Any]]) -> float:
        (found,), (wanted,) = run(self.batch(self.judged)), self.models.float_runner(1)(self.batch(self.judged))
        return float(np.square(found - wanted).sum())


def patient(net: Any, config: Any, seen: Any, calibration: Any, judged: Any, share: float | None = None) -> Patient:
    """``seen`` is what the toolkit calibrated on; ``calibration`` what it should have."""

    def gen() -> Any:
        return ([part] for part in seen.split(8))

    target = None
    if share is not None:
        full = mct.core.pytorch_resource_utilization_data(net, gen)
        target = mct.core.ResourceUtilization(weights_memory=share * full.weights_memory)
    quantized, _ = mct.ptq.pytorch_post_training_quantization(
        net, gen, core_config=config, target_resource_utilization=target
    )
    case = collect(net, quantized, representative=calibration, validation=judged, core_config=config)
    shown = settings_in_force(derive(case, BASE))
    models = open_torch_models(net, quantized, TorchData(net, {"validation": judged}).inputs(), {"x": judged.numpy()})
    return Patient(models, shown, calibration, judged, case)


def settings(**options: Any) -> Any:
    return mct.core.CoreConfig(quantization_config=mct.core.QuantizationConfig(**options))


def left_in_float() -> Any:
    config, editor = settings(), mct.core.network_editor
    change = editor.ChangeCandidatesWeightsQuantConfigAttr(attr_name="weight", enable_weights_quantization=False)
    config.debug_config.network_editor = [editor.EditRule(editor.NodeNameFilter("conv3"), change)]
    return config


def few_bits() -> Any:
    config = settings()
    for name, bits in (("fc", 2), ("conv1_bn", 4)):
        node = mct.core.network_editor.NodeNameFilter(name)
        config.bit_width_config.set_manual_weights_bit_width(node, bits, "weight")
    return config


CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    "default": settings,
    "z_threshold": lambda: settings(z_threshold=2.5),
    "no clipping": lambda: settings(activation_error_method=NOCLIPPING, weights_error_method=NOCLIPPING),
    "no bias correction": lambda: settings(weights_bias_correction=False),
    "both bias corrections": lambda: settings(activation_bias_correction=True),
    "shift": lambda: settings(shift_negative_ratio=0.5),
    "no shift": lambda: settings(shift_negative_activation_correction=False, activation_channel_equalization=True),
    "float weights": left_in_float,
    "few bits": few_bits,
}


@pytest.mark.parametrize("name", [*CONFIGURATIONS, "search"])
def test_the_settings_in_force_give_the_same_module_again(name: str, net: Any) -> None:
    x = images(1)
    share = 0.6 if name == "search" else None
    found = patient(net, CONFIGURATIONS.get(name, settings)(), x, x, x, share)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    executed = found.execute()
    again, deployed = executed.runner(1)(found.batch(x)), found.models.quantized_runner(1)(found.batch(x))
    np.testing.assert_allclose(again[0], deployed[0], rtol=0, atol=1e-5, err_msg=found.script())
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


class Chain(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions and scores; between the former channels differ, and one weight of each row is large."""

    def __init__(self, spread: float = 1.0, tail: float = 1.0, activation: torch.nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.conv2 = torch.nn.Conv2d(16, 8, 3, padding=1)
        self.act = activation or torch.nn.ReLU()
        self.fc = torch.nn.Linear(8, 10)
        gains = spread ** torch.linspace(-1, 1, 16)
        with torch.no_grad():
            self.bn1.weight *= gains
            self.conv2.weight /= gains.reshape(1, -1, 1, 1)
            self.conv2.weight[:, 0, 0, 0] *= tail
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv2(self.act(self.bn1(self.conv1(x)))).mean((2, 3)))


class Difference(torch.nn.Module):  # type: ignore[misc]
    """Two convolutions whose large offsets cancel each other where they are added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (torch.nn.Conv2d(3, 8, 3, padding=1) for _ in range(2))
        self.fc = torch.nn.Linear(8, 10)
        with torch.no_grad():
            self.left.bias[0] += 200
            self.right.bias[0] -= 200
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc((self.left(x) + self.right(x)).mean((2, 3)))


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


class Uneven(torch.nn.Module):  # type: ignore[misc]
    """A small convolution and scores that need their bits, and a large branch whose weights 2 bits hold exactly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.small, self.fc = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(4, 10)
        self.large, self.back = torch.nn.Conv2d(4, 64, 3, padding=1), torch.nn.Conv2d(64, 4, 1)
        with torch.no_grad():
            for layer in (self.large, self.back):
                layer.weight.copy_(0.0625 * layer.weight.sign())
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.small(x))
        return self.fc((a + self.back(torch.relu(self.large(a)))).mean((2, 3)))


@dataclass(frozen=True)
class Fault:
    """A mistake, and the names in MCT's graph that a remedy gets.

    Attributes:
        config: Of the patient.
        layers: Those with weights that findings name.
        tensors: Activations that findings name.
        net: The float module; None: that of the fixture.
        seen: What the toolkit read, made of what the user gives.
        calibration: What the user gives, made of proper samples.
        judged: What is judged, made of proper samples.
        sound: Configuration without the mistake; None: one that adds no noise.
        left: Share of the noise, beyond that of ``sound``, that may be left.
    """

    config: Callable[[], Any]
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    net: Callable[[], Any] | None = None
    seen: Callable[[Any], Any] = lambda x: x
    calibration: Callable[[Any], Any] = lambda x: x
    judged: Callable[[Any], Any] = lambda x: x
    sound: Callable[[], Any] | None = None
    left: float = 0.2


def bright(x: Any) -> Any:
    found = x.clone()
    found[0, 0, 0, 0] = 500.0
    return found


def dark(x: Any) -> Any:
    return 0.1 * x


def shifted(x: Any) -> Any:
    return 0.2 * x + 3


def uneven(x: Any) -> Any:
    return x + 3 * x[:, :, :1, :1]


def bits_of(name: str, bits: int = 2, **options: Any) -> Callable[[], Any]:
    def made() -> Any:
        config = settings(**options)
        node = mct.core.network_editor.NodeNameFilter(name)
        config.bit_width_config.set_manual_weights_bit_width(node, bits, "weight")
        return config

    return made


def four_bits_for_all() -> Any:
    config = settings()
    for name in ("small", "large", "back", "fc"):
        node = mct.core.network_editor.NodeNameFilter(name)
        config.bit_width_config.set_manual_weights_bit_width(node, 4, "weight")
    return config


OFFSETS = Fault(settings, tensors=("left", "right"), net=Difference)
STALE = Fault(settings, seen=dark)
FAULTS: dict[tuple[str, int], Fault] = {
    ("limit-activation-range", 0): Fault(
        lambda: settings(activation_error_method=NOCLIPPING), seen=bright, calibration=bright
    ),
    ("widen-activation-range", 0): Fault(lambda: settings(z_threshold=0.5)),
    ("cross-layer-equalization", 0): Fault(settings, net=lambda: Chain(10.0)),
    ("weight-threshold-search", 0): Fault(
        bits_of("conv2", 4, weights_error_method=NOCLIPPING), net=lambda: Chain(tail=4.0), sound=bits_of("conv2", 4)
    ),
    ("more-weight-bits", 0): Fault(bits_of("fc"), ("fc",), sound=settings),
    ("bias-correction-on", 0): Fault(
        bits_of("conv1_bn", weights_bias_correction=False),
        net=Chain,
        calibration=shifted,
        judged=shifted,
        sound=bits_of("conv1_bn"),
    ),
    ("bias-correction-off", 0): Fault(bits_of("conv1_bn"), net=Chain, calibration=shifted, judged=lambda x: 0.2 * x),
    ("shift-negative", 0): Fault(
        lambda: settings(shift_negative_activation_correction=False),
        net=lambda: Chain(10.0, activation=torch.nn.GELU()),
        left=0.5,
    ),
    ("activations-16-bit", 0): OFFSETS,
    ("keep-layers-float", 0): Fault(bits_of("conv1_bn"), ("conv1_bn",), ("relu",)),
    ("keep-layers-float", 1): OFFSETS,
    ("keep-operator-types-float", 0): OFFSETS,
    ("float-tail", 0): Fault(bits_of("fc"), ("fc",), ("fc",)),
    ("float-tail", 1): OFFSETS,
    ("float-first-layers", 0): Fault(bits_of("conv1_bn"), ("conv1_bn",), ("relu",)),
    ("float-first-layers", 1): OFFSETS,
    ("mixed-precision-search", 0): Fault(
        four_bits_for_all, net=Uneven, calibration=uneven, judged=uneven, sound=settings
    ),
    ("bit-width-override", 0): Fault(bits_of("conv3"), ("conv3",), sound=settings),
    ("balance-concatenation", 0): Fault(settings, tensors=("cat",), net=Joined),
    ("minimum-range", 0): Fault(lambda: settings(min_threshold=64.0)),
    ("one-preprocessing", 0): STALE,
    ("recalibrate-on-proper-data", 0): STALE,
    ("calibrate-again", 0): STALE,
}


SEARCHES = "a search chooses bits under the user's own target: no way of weighing is better on every network"
FAILED = "for a quantization that failed: there is no patient"
#: Snippets that are run (test_mct_snippets.py), and heal nothing that can be measured here, and why.
EXEMPT = {
    ("last-layer-distance-weighting", 0): SEARCHES,
    ("more-mixed-precision-images", 0): SEARCHES,
    ("hessian-scores", 0): SEARCHES,
    ("learned-rounding", 0): "on networks and sets as small as these it adds noise, even in 250 epochs",
    ("search-calibration-methods", 0): "no method is better on every network",
    ("quantization-aware-training", 0): "its training loop is the user's",
    ("loosen-target", 0): FAILED,
    ("quantize-without-target", 0): FAILED,
    ("restrict-one-resource", 0): FAILED,
    ("own-core-config", 0): FAILED,
}


def test_every_snippet_has_a_patient_or_a_reason() -> None:
    found = set()
    for remedy in BASE.remedies.values():
        own = [snippet for snippet in remedy.snippets if snippet.toolchain == "Sony MCT"]
        found |= {(remedy.id, number) for number in range(len(own))}
    assert found == FAULTS.keys() | EXEMPT.keys() and not FAULTS.keys() & EXEMPT.keys()


@pytest.mark.source("mct-outlier-removal", "mct-shift-negative", "mct-bias-correction", "mct-error-method")
@pytest.mark.parametrize("key", FAULTS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_a_prescription_heals(key: tuple[str, int], net: Any) -> None:
    fault = FAULTS[key]
    given, judged = fault.calibration(images(1)), fault.judged(images(2))
    module = fault.net() if fault.net is not None else net
    found = patient(module, fault.config(), fault.seen(given), given, judged)
    names = {"quantized_layers": fault.layers, "quantized_tensors": fault.tensors, "typed": fault.tensors, "ratio": 0.5}
    snippet = [each for each in BASE.remedies[key[0]].snippets if each.toolchain == "Sony MCT"][key[1]]
    (asked,) = filled_options(snippet, names, "test").values()
    code = render_snippet(snippet.code, names, "test") if snippet.code else ""
    text = found.script(asked, code=code)
    assert "# changed by the remedy" in text or key[0] == "calibrate-again"
    before, after = (
        found.noise(found.models.quantized_runner(1)),
        found.noise(found.execute(asked, code=code).runner(1)),
    )
    sound = 0.0
    if fault.sound is not None:
        healthy = patient(module, fault.sound(), given, given, judged)
        sound = healthy.noise(healthy.models.quantized_runner(1))
    assert after - sound < fault.left * (before - sound) and after < 0.9 * before, text


def test_what_the_toolkit_refuses_is_said_in_its_words(net: Any) -> None:
    x = images(1)
    found = patient(net, settings(), x, x, x)
    with pytest.raises(ModelError, match="Sony MCT refuses the prescription") as error:
        found.execute({"weight_bits": {"no_such_node": 8}})
    assert "No nodes found" in str(error.value)


@pytest.mark.parametrize("name", ["relu", "act", "gelu", "conv3", "add", "cat", "x", "conv4", "fc", "mean"])
def test_sixteen_bits_are_advised_only_where_the_toolkit_takes_them(name: str, net: Any) -> None:
    x = images(1)
    found = patient(net, settings(), x, x, x)
    facts = derive(found.case, BASE)
    place = next((i for i, tensor in enumerate(facts.tensors) if tensor.name == name), None)
    if place is None:
        pytest.skip("it has no quantizer of its own")
    advice = advise_on(BASE.remedies["activations-16-bit"], Targets((place,)), BASE, facts)
    own = [snippet for snippet in advice.snippets if snippet.toolchain == "Sony MCT"]
    if own:
        (asked,) = filled_options(own[0], advice.fields, "test").values()
        assert asked["activation_bits"] == {name: 16}
        found.execute(asked)
