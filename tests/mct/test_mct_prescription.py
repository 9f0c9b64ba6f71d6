"""Prescriptions for MCT: nothing in force is lost, and the printed text heals when it is executed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/run")

from quantmedic import collect, load_rulebase  # noqa: E402
from quantmedic.collectors.data.batches import Batch  # noqa: E402
from quantmedic.collectors.from_torch.inputs import TorchData  # noqa: E402
from quantmedic.collectors.from_torch.models import TorchModels, open_torch_models  # noqa: E402
from quantmedic.engine.case.settings_in_force import SettingsInForce  # noqa: E402
from quantmedic.engine.diagnosis.prescription import complete_code  # noqa: E402
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force  # noqa: E402
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet  # noqa: E402
from quantmedic.engine.errors import ModelError  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402
from quantmedic.engine.rules.options import mark_changes, merge_all, write  # noqa: E402
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force  # noqa: E402
from quantmedic.trials.from_torch.execute import EXECUTORS, ExecutedModule  # noqa: E402

pytestmark = pytest.mark.thorough

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

    def execute(self, *options: Any, code: str = "") -> ExecutedModule:
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
    return Patient(models, shown, calibration, judged)


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


@dataclass(frozen=True)
class Fault:
    """A mistake, and the names in MCT's graph that a remedy gets."""

    config: Callable[[], Any]
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)
    seen: Callable[[Any], Any] = lambda x: x
    calibration: Callable[[Any], Any] = lambda x: x


def bright(x: Any) -> Any:
    found = x.clone()
    found[0, 0, 0, 0] = 500.0
    return found


def bits_of(name: str, bits: int = 2) -> Callable[[], Any]:
    def made() -> Any:
        config = settings()
        node = mct.core.network_editor.NodeNameFilter(name)
        config.bit_width_config.set_manual_weights_bit_width(node, bits, "weight")
        return config

    return made


FAULTS: dict[str, Fault] = {
    "limit-activation-range": Fault(
        lambda: settings(activation_error_method=NOCLIPPING), seen=bright, calibration=bright
    ),
    "widen-activation-range": Fault(lambda: settings(z_threshold=0.5)),
    "more-weight-bits": Fault(bits_of("fc"), ("fc",)),
    "bit-width-override": Fault(bits_of("conv3"), ("conv3",)),
    "keep-layers-float": Fault(bits_of("conv1_bn"), ("conv1_bn",), ("relu",)),
    "float-tail": Fault(bits_of("fc"), ("fc",), ("fc",)),
    "float-first-layers": Fault(bits_of("conv1_bn"), ("conv1_bn",), ("relu",)),
    "one-preprocessing": Fault(settings, seen=lambda x: 0.1 * x),
}


@pytest.mark.parametrize("remedy", FAULTS)
def test_a_prescription_heals(remedy: str, net: Any) -> None:
    fault, given, judged = FAULTS[remedy], images(1), images(2)
    found = patient(net, fault.config(), fault.seen(given), fault.calibration(given), judged)
    names = {"quantized_layers": fault.layers, "quantized_tensors": fault.tensors, **fault.fields}
    snippet = next(each for each in BASE.remedies[remedy].snippets if each.toolchain == "Sony MCT")
    (asked,) = filled_options(snippet, names, "test").values()
    code = render_snippet(snippet.code, names, "test") if snippet.code else ""
    assert "# changed by the remedy" in found.script(asked, code=code)
    healed = found.noise(found.execute(asked, code=code).runner(1))
    assert healed < 0.5 * found.noise(found.models.quantized_runner(1)), found.script(asked, code=code)


def test_what_the_toolkit_refuses_is_said_in_its_words(net: Any) -> None:
    x = images(1)
    found = patient(net, settings(), x, x, x)
    with pytest.raises(ModelError, match="Sony MCT refuses the prescription") as error:
        found.execute({"weight_bits": {"no_such_node": 8}})
    assert "No nodes found" in str(error.value)
