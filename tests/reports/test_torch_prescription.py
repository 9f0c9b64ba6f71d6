"""Prescriptions for torch modules: nothing in force is lost, and the printed text itself heals."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao", reason="torchao is not installed")

from builders import torch_models as zoo  # noqa: E402
from torch import nn  # noqa: E402
from torch.ao.quantization import (  # noqa: E402
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    get_default_qconfig_mapping,
    quantize_fx,
)
from torchao.quantization import (  # noqa: E402
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization import pt2e as observers  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86  # noqa: E402
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack  # noqa: E402

from quantmedic import collect, load_rulebase  # noqa: E402
from quantmedic.collectors.data.batches import Batch  # noqa: E402
from quantmedic.collectors.from_torch.torch_inputs import TorchData  # noqa: E402
from quantmedic.collectors.from_torch.torch_models import TorchModels, open_torch_models  # noqa: E402
from quantmedic.collectors.measure.host import has_vnni  # noqa: E402
from quantmedic.collectors.measure.models import Edited  # noqa: E402
from quantmedic.engine.case.settings_in_force import SettingsInForce  # noqa: E402
from quantmedic.engine.diagnosis.prescription import complete_code  # noqa: E402
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force  # noqa: E402
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet  # noqa: E402
from quantmedic.engine.errors import ModelError  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402
from quantmedic.engine.rules.toolchain import choose, find_toolchain, options_in_force  # noqa: E402
from quantmedic.engine.rules.toolchain_options import mark_changes, merge_all, write  # noqa: E402
from quantmedic.trials.bench import OutOfTimeError  # noqa: E402
from quantmedic.trials.from_torch.torch_remedies import EXECUTORS, run_module  # noqa: E402

pytestmark = pytest.mark.thorough

BASE = load_rulebase()
FLOWS = ("FX", "PT2E", "torchao")
Tensor = torch.Tensor
Quantize = Callable[[nn.Module, Tensor], nn.Module]


# --- patients --------------------------------------------------------------------------------------------------------


def fx(
    *, observer: Any = HistogramObserver, weight: Any = None, reference: bool = False, left: str = "", **options: Any
) -> Quantize:
    def quantized(net: nn.Module, x: Tensor) -> nn.Module:
        mapping = get_default_qconfig_mapping("x86")
        usual = mapping.global_qconfig
        mapping.set_global(QConfig(observer.with_args(**options), weight or usual.weight))
        if left:
            mapping.set_module_name(left, None)
        prepared = quantize_fx.prepare_fx(copy.deepcopy(net), mapping, (x,))
        prepared(x)
        return (quantize_fx.convert_to_reference_fx if reference else quantize_fx.convert_fx)(prepared)

    return quantized


def pt2e(quantizer: Callable[[], Any]) -> Quantize:
    def quantized(net: nn.Module, x: Tensor) -> nn.Module:
        sides = ({0: torch.export.Dim("samples", min=1, max=4096)},)
        program = torch.export.export(copy.deepcopy(net), (x,), dynamic_shapes=sides).module()
        prepared = prepare_pt2e(program, quantizer())
        prepared(x)
        return convert_pt2e(prepared)

    return quantized


def x86_quantizer(
    left: str = "", *, bits: int = 8, observer: Any = observers.HistogramObserver, even: bool = False, **options: Any
) -> Callable[[], Any]:
    def made() -> Any:
        usual = x86.get_default_x86_inductor_quantization_config(**options)
        activation = dataclasses.replace(
            usual.input_activation,
            observer_or_fake_quant_ctr=observer.with_args(eps=2**-12),
            qscheme=torch.per_tensor_symmetric if even else torch.per_tensor_affine,
        )
        weight = dataclasses.replace(usual.weight, quant_min=-(2 ** (bits - 1)), quant_max=2 ** (bits - 1) - 1)
        config = x86.QuantizationConfig(activation, activation, weight, None)
        found = x86.X86InductorQuantizer().set_global(config)
        if left:
            found.set_module_name_qconfig(left, None)
        return found

    return made


def xnnpack_quantizer(**options: Any) -> Callable[[], Any]:
    def made() -> Any:
        return xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config(**options))

    return made


def ao(config: Any, left: str = "") -> Quantize:
    def quantized(net: nn.Module, x: Tensor) -> nn.Module:
        found = copy.deepcopy(net)
        quantize_(found, config, filter_fn=lambda part, name: type(part) is nn.Linear and name != left)
        return found

    return quantized


PER_TENSOR = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
UNEVEN = PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_affine)
SETTINGS: dict[str, tuple[str, Quantize]] = {
    "fx": ("FX", zoo.fx),
    "fx reference": ("FX", zoo.fx_reference),
    "fx all codes": ("FX", fx()),
    "fx min-max, reduced, float layer": ("FX", fx(observer=MinMaxObserver, reduce_range=True, left="conv2")),
    "fx symmetric, per tensor": ("FX", fx(weight=PER_TENSOR, qscheme=torch.per_tensor_symmetric)),
    "fx uneven weights": ("FX", fx(weight=UNEVEN, reference=True)),
    "pt2e": ("PT2E", zoo.pt2e),
    "pt2e min-max, reduced, float layer": (
        "PT2E",
        pt2e(x86_quantizer(observer=observers.MinMaxObserver, reduce_range=True, left="fc")),
    ),
    "pt2e symmetric, four bits": ("PT2E", pt2e(x86_quantizer(even=True, bits=4))),
    "xnnpack": ("PT2E", pt2e(xnnpack_quantizer())),
    "xnnpack per channel": ("PT2E", pt2e(xnnpack_quantizer(is_per_channel=True))),
    "int8 weights": ("torchao", ao(Int8WeightOnlyConfig())),
    "int8 dynamic": ("torchao", ao(Int8DynamicActivationInt8WeightConfig())),
    "int8 static": ("torchao", zoo.int8_static),
    "int8 groups": ("torchao", ao(IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(32)))),
    "int4 groups": ("torchao", ao(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)))),
    "int4 rows": ("torchao", ao(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)))),
    "int4 dynamic": ("torchao", ao(Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4))),
    "float layer": ("torchao", ao(Int8WeightOnlyConfig(), left="2")),
}


@dataclass(frozen=True)
class Patient:
    """A float module with its quantized counterpart, and the samples for both."""

    models: TorchModels
    shown: SettingsInForce
    toolchain: str | None
    calibration: Tensor
    judged: Tensor

    def execute(self, code: str, deadline: float | None = None) -> Edited:
        executor = next(each for each in EXECUTORS if each.toolchain == self.toolchain)
        assert executor.missing() is None and executor.version() is not None
        batches = [self.batch(part) for part in self.calibration.split(16)]
        return executor.execute(self.models, code, batches, deadline)

    def batch(self, x: Tensor) -> Batch:
        return Batch({self.models.inputs.names[0]: x.numpy()})

    def noise(self, run: Callable[[Batch], list[Any]]) -> float:
        batch = self.batch(self.judged)
        (found,), (wanted,) = run(batch), self.models.float_runner(1)(batch)
        return float(np.square(found - wanted).sum())


def patient(net: nn.Module, quantize: Quantize, calibration: Tensor, judged: Tensor, seen: Tensor) -> Patient:
    """``seen`` is what the toolchain calibrated on; ``calibration`` what it should have."""
    quantized = quantize(net, seen)
    facts = derive(collect(net, quantized, representative=calibration, validation=judged, attribution=False), BASE)
    inputs = TorchData(net, {"validation": judged}).inputs()
    models = open_torch_models(net, quantized, inputs, {inputs.names[0]: judged.numpy()})
    return Patient(models, settings_in_force(facts), choose(facts.model, BASE.toolchains).name, calibration, judged)


def script(found: Patient, *options: Any, code: str = "") -> str:
    """The prescription: what is in force, and the options of remedies."""
    toolchain = find_toolchain(str(found.toolchain), BASE.toolchains)
    form, spec = next(iter(toolchain.forms.items()))
    before = options_in_force(toolchain, form, found.shown)
    merged = merge_all([*options, before])
    ordered = {key: merged[key] for key in dict.fromkeys([*before, *merged])}
    call = write(form, spec, mark_changes(ordered, before))
    return complete_code(f"{code}\n{call}", "python", toolchain)


@pytest.mark.nightly
def test_the_settings_in_force_give_the_same_module_again(subtests: pytest.Subtests) -> None:
    for name, (toolchain, quantize) in SETTINGS.items():
        with subtests.test(name):
            rows = toolchain == "torchao"
            net, x = (zoo.made(zoo.Dense), zoo.rows(16, 64)) if rows else (zoo.made(zoo.ConvNet), zoo.images(16))
            net_before = copy.deepcopy(net.state_dict())
            found = patient(net, quantize, x, x, x)
            assert found.toolchain == toolchain
            code = script(found)
            executed = found.execute(code)
            assert executed.save is None
            batch = found.batch(x)
            (again,), (deployed,) = executed.runner(1)(batch), found.models.quantized_runner(1)(batch)
            np.testing.assert_allclose(again, deployed, rtol=0, atol=1e-6, err_msg=code)
            assert all(torch.equal(value, net_before[key]) for key, value in net.state_dict().items())


# --- remedies --------------------------------------------------------------------------------------------------------


def plain(large: str = "") -> nn.Module:
    """conv1, conv2, fc; one of them has a large weight that meets a quiet channel, which its output hardly shows."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.relu1 = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()
            self.conv2, self.relu2 = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
            self.fc = nn.Linear(8, 5)

        def forward(self, image: Tensor) -> Tensor:
            y = self.relu2(self.conv2(self.relu1(self.conv1(image))))
            return self.fc(y.mean((2, 3)))

    net = zoo.made(Plain)
    before = {"conv2": net.conv1, "fc": net.conv2}.get(large)
    with torch.no_grad():
        if before is not None:
            before.weight[0] *= 0.01
            before.bias[0] *= 0.01
        if large:
            net.get_submodule(large).weight[0, 0] = 40.0
    return net


def dense(large: str = "") -> nn.Module:
    """The same of two linear layers."""
    net = zoo.made(zoo.Dense)
    with torch.no_grad():
        if large == "2":
            net[0].weight[0] *= 0.01
            net[0].bias[0] *= 0.01
        if large:
            net.get_submodule(large).weight[:, 0] = 20.0
    return net


def loud() -> nn.Module:
    """Reads an input column that is loud, and hardly weighed."""
    net = zoo.made(zoo.Dense)
    with torch.no_grad():
        net[0].weight[:, 0] /= 300
    return net


def usual_images(seed: int) -> Tensor:
    return zoo.images(32, seed)


def quiet_images(seed: int) -> Tensor:
    return zoo.images(32, seed) * torch.tensor([0.01, 1.0, 1.0]).reshape(3, 1, 1)


def even_images(seed: int) -> Tensor:
    return zoo.images(32, seed).abs()


def many_images(seed: int) -> Tensor:
    return torch.randn(192, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def bright(x: Tensor, every: int = 1) -> Tensor:
    """One pixel of each, or of every so many samples, is far brighter than all others."""
    found = x.clone()
    found[::every, :, 3, 3] = 60.0
    return found


def usual_rows(seed: int) -> Tensor:
    return zoo.rows(32, 64, seed)


def quiet_rows(seed: int) -> Tensor:
    return zoo.rows(32, 64, seed) * torch.cat([torch.tensor([0.01]), torch.ones(63)])


def loud_rows(seed: int) -> Tensor:
    return zoo.rows(32, 64, seed) * torch.cat([torch.tensor([300.0]), torch.ones(63)])


@dataclass(frozen=True)
class Fault:
    """A mistake, and the names that a remedy gets."""

    net: Callable[[], nn.Module]
    quantize: Quantize
    samples: Callable[[int], Tensor]
    names: tuple[str, ...] = ()
    seen: Callable[[Tensor], Tensor] = lambda x: x
    judged: Callable[[Tensor], Tensor] = lambda x: x
    most: float = 0.5
    """Share of the noise that may be left."""


def small(x: Tensor) -> Tensor:
    return x * 0.1


def imbalanced(large: str, quantize: Quantize) -> Fault:
    return Fault(lambda: plain(large), quantize, quiet_images if large == "conv1" else usual_images, (large,))


def coarse(large: str, quantize: Quantize) -> Fault:
    return Fault(lambda: dense(large), quantize, quiet_rows if large == "0" else usual_rows, (large,))


FX_TENSOR = fx(weight=PER_TENSOR)
PT2E_TENSOR = pt2e(xnnpack_quantizer())
ROWS = ao(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)))
FX_MINMAX, FX_HISTOGRAM = fx(observer=MinMaxObserver, reduce_range=True), fx(reduce_range=True)
PT2E_MINMAX = pt2e(x86_quantizer(observer=observers.MinMaxObserver, reduce_range=True))
PT2E_HISTOGRAM = pt2e(x86_quantizer(reduce_range=True))
FX_CONV1, FX_CONV2 = imbalanced("conv1", FX_TENSOR), imbalanced("conv2", FX_TENSOR)
PT2E_CONV1, PT2E_CONV2 = imbalanced("conv1", PT2E_TENSOR), imbalanced("conv2", PT2E_TENSOR)
COARSE_FIRST = coarse("0", ROWS)
FAULTS: dict[tuple[str, str], Fault] = {
    ("limit-activation-range", "FX"): Fault(plain, FX_MINMAX, many_images, seen=lambda x: bright(x, 200)),
    ("limit-activation-range", "PT2E"): Fault(plain, PT2E_MINMAX, many_images, seen=lambda x: bright(x, 200)),
    ("widen-activation-range", "FX"): Fault(
        plain, FX_HISTOGRAM, many_images, seen=lambda x: bright(x, 200), judged=bright
    ),
    ("widen-activation-range", "PT2E"): Fault(
        plain, PT2E_HISTOGRAM, many_images, seen=lambda x: bright(x, 200), judged=bright
    ),
    ("per-channel-weights", "FX"): FX_CONV1,
    ("per-channel-weights", "PT2E"): PT2E_CONV1,
    ("more-weight-bits", "PT2E"): Fault(plain, pt2e(x86_quantizer(bits=4)), usual_images),
    ("more-weight-bits", "torchao"): Fault(dense, ROWS, usual_rows),
    ("asymmetric-activations", "FX"): Fault(
        plain, fx(qscheme=torch.per_tensor_symmetric, reduce_range=True), even_images
    ),
    ("asymmetric-activations", "PT2E"): Fault(plain, pt2e(x86_quantizer(even=True, reduce_range=True)), even_images),
    ("keep-layers-float", "FX"): FX_CONV2,
    ("keep-layers-float", "PT2E"): PT2E_CONV2,
    ("keep-layers-float", "torchao"): COARSE_FIRST,
    ("keep-group-float", "FX"): FX_CONV2,
    ("keep-group-float", "PT2E"): PT2E_CONV2,
    ("keep-decoder-float", "FX"): FX_CONV2,
    ("keep-decoder-float", "PT2E"): PT2E_CONV2,
    ("keep-operator-types-float", "FX"): FX_CONV2,
    ("keep-operator-types-float", "PT2E"): PT2E_CONV2,
    ("float-tail", "FX"): imbalanced("fc", FX_TENSOR),
    ("float-tail", "PT2E"): imbalanced("fc", PT2E_TENSOR),
    ("float-tail", "torchao"): coarse("2", ROWS),
    ("float-first-layers", "FX"): FX_CONV1,
    ("float-first-layers", "PT2E"): PT2E_CONV1,
    ("float-first-layers", "torchao"): COARSE_FIRST,
    ("smooth-quant", "torchao"): Fault(loud, ao(Int8DynamicActivationInt8WeightConfig()), loud_rows),
    ("dynamic-quantization", "PT2E"): Fault(dense, zoo.pt2e, usual_rows, seen=small),
    ("dynamic-quantization", "torchao"): Fault(dense, zoo.int8_static, usual_rows, seen=small),
    ("one-preprocessing", "FX"): Fault(plain, zoo.fx, usual_images, seen=small),
    ("one-preprocessing", "PT2E"): Fault(plain, zoo.pt2e, usual_images, seen=small),
    ("one-preprocessing", "torchao"): Fault(dense, zoo.int8_static, usual_rows, seen=small),
}
#: Seven bits heal processors whose sums saturate; this one may have none. The other takes a training loop.
OTHERS = {
    *{("reduce-range", "FX"), ("reduce-range", "PT2E"), ("quantization-aware-training", "PT2E")},
    # They change the data that the loader yields, and no option.
    *{(remedy, flow) for remedy in ("recalibrate-on-proper-data", "calibrate-again") for flow in ("FX", "PT2E")},
}
SNIPPETS = {
    (remedy.id, snippet.toolchain): snippet
    for remedy in BASE.remedies.values()
    for snippet in remedy.snippets
    if snippet.toolchain in FLOWS and snippet.takes("torch")
}


def test_every_snippet_has_a_patient() -> None:
    assert SNIPPETS.keys() == FAULTS.keys() | OTHERS
    snippets = [s for remedy in BASE.remedies.values() for s in remedy.snippets if s.takes("torch")]
    assert sum(snippet.toolchain in FLOWS for snippet in snippets) == len(SNIPPETS)


@pytest.mark.nightly
def test_every_snippet_heals(subtests: pytest.Subtests) -> None:
    together: dict[int, tuple[Fault, list[tuple[str, str]]]] = {}
    for key, fault in FAULTS.items():
        together.setdefault(id(fault), (fault, []))[1].append(key)
    for fault, keys in together.values():
        given, judged = fault.samples(1), fault.judged(fault.samples(2)[:32])
        calibration = given if fault.seen is small else fault.seen(given)
        found = patient(fault.net(), fault.quantize, calibration, judged, fault.seen(given))
        before = found.noise(found.models.quantized_runner(1))
        for key in keys:
            with subtests.test(" ".join(key)):
                assert found.toolchain == key[1]
                snippet, names = SNIPPETS[key], dict.fromkeys(("layers", "nodes", "group", "typed"), fault.names)
                (asked,) = filled_options(snippet, names, "test").values()
                code = script(found, asked, code=render_snippet(snippet.code, names, "test") if snippet.code else "")
                assert "# changed by the remedy" in code
                healed = found.noise(found.execute(code).runner(1))
                assert healed < fault.most * before, code
                if fault.seen(given) is not given and key[0] != "one-preprocessing":
                    anew = found.noise(found.execute(script(found)).runner(1))
                    assert healed < 0.7 * anew, "calibrating anew does not heal it"


def test_training_with_quantizers_runs_as_printed() -> None:
    net, x = plain(), usual_images(1)
    found = patient(net, zoo.pt2e, x, usual_images(2), small(x))
    toolchain = find_toolchain("pt2e", BASE.toolchains)
    text = render_snippet(SNIPPETS["quantization-aware-training", "PT2E"].code, {}, "test")
    steps = []

    def train(module: nn.Module) -> None:
        optimizer = torch.optim.SGD(module.parameters(), 1e-4)
        for batch in x.split(16):
            loss = (module(batch) - net(batch)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(loss)

    names: dict[str, Any] = {"model": net, "loader": x.split(16), "train": train}
    exec(compile(complete_code(text, "python", toolchain), "prescription.py", "exec"), names)
    assert len(steps) == 2
    trained = partial(run_module, names["quantized"], found.models)
    assert found.noise(trained) < 0.5 * found.noise(found.models.quantized_runner(1))


def test_seven_bits_are_those_of_the_activations() -> None:
    x = usual_images(1)
    for flow, quantize in (("FX", fx()), ("PT2E", zoo.pt2e)):
        found = patient(plain(), quantize, x, x, x)
        (asked,) = filled_options(SNIPPETS["reduce-range", flow], {}, "test").values()
        coarse = found.noise(found.execute(script(found, asked)).runner(1))
        ratio = coarse / found.noise(found.models.quantized_runner(1))
        if flow == "FX" and has_vnni() is False:
            assert ratio < 1, "sums of 8 bits saturate in the kernels of this processor"
        else:
            assert 2 < ratio < 8, "four times the power of their noise"


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_an_execution_that_fails_says_why_and_one_that_works_leaves_no_trace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = usual_images(1)
    found = patient(plain(), zoo.pt2e, x, x, x)
    code = script(found)
    with pytest.raises(ModelError, match="PT2E refuses the prescription") as error:
        found.execute(code.replace('quant_max": 255', 'quant_max": -1'))
    assert "Error: " in str(error.value.where)
    with pytest.raises(ModelError, match="leaves no module 'quantized' behind"):
        found.execute("import torch")
    with pytest.raises(OutOfTimeError):
        found.execute(code, deadline=0.0)
    capfd.readouterr()
    state = torch.get_rng_state()
    found.execute("print('loud')\nimport torch\ntorch.rand(3)\n" + code)
    assert capfd.readouterr().out == ""
    assert torch.equal(torch.get_rng_state(), state)


def test_several_inputs_reach_the_toolchain_in_their_order() -> None:
    net = zoo.made(zoo.TwoInputs)
    left, right = zoo.rows(16, 16), zoo.rows(16, 12, 8)
    arrays = {"left": left.numpy(), "right": right.numpy()}
    quantized = ao(Int8WeightOnlyConfig())(net, left)
    facts = derive(collect(net, quantized, validation=lambda: iter([(left, right)])), BASE)
    models = open_torch_models(net, quantized, TorchData(net, {"validation": [(left, right)]}).inputs(), arrays)
    found = Patient(models, settings_in_force(facts), "torchao", left, left)
    (executor,) = [each for each in EXECUTORS if each.toolchain == "torchao"]
    static = options_in_force(find_toolchain("torchao", BASE.toolchains), "quantize_", SETTINGS_OF_STATIC)
    executed = executor.execute(models, script(found, static), [Batch(arrays)], None)
    assert np.isfinite(executed.runner(1)(Batch(arrays))[0]).all()


SETTINGS_OF_STATIC = SettingsInForce(format="QDQ", activation_type="int8", weight_type="int8", per_channel_weights=True)
