"""Every snippet for MCT is run as rendered, and the model is quantized with it by the real toolkit."""

import copy
import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from quantmedic.api.rulebase import load_rulebase  # noqa: E402
from quantmedic.engine.case.settings_in_force import SettingsInForce  # noqa: E402
from quantmedic.engine.diagnosis.prescription import complete_code  # noqa: E402
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet  # noqa: E402
from quantmedic.engine.rules.toolchain import find_toolchain, options_in_force  # noqa: E402
from quantmedic.engine.rules.toolchain_options import merge_all, write  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

BASE = load_rulebase()
TOOLCHAIN = find_toolchain("mct", BASE.toolchains)
FORM = "pytorch_post_training_quantization"
SNIPPETS = [
    pytest.param(remedy.id, number, id=f"{remedy.id}-{number}")
    for remedy in BASE.remedies.values()
    for number, snippet in enumerate(remedy.snippets)
    if snippet.toolchain == "Sony MCT"
]
#: Names as in the quantized module: a folded layer, and the activation behind it.
FIELDS: dict[str, Any] = {
    "quantized_layers": ("conv1_bn", "fc"),
    "quantized_tensors": ("conv3",),
    "typed": ("gelu",),
    "ratio": 0.5,
}


class Run:
    """What a prescription left behind, and the toolkit's model with it."""

    def __init__(self, net: Any, batches: list[Any]) -> None:
        self.net, self.batches = net, batches
        self.names: dict[str, Any] = {}

    def __call__(self, code: str) -> Any:
        self.names = {"gen": self.gen, "model": self.net, "train": lambda module: None}
        exec(compile(code, "prescription.py", "exec"), self.names)
        self.model = self.names["quantized"]
        with torch.no_grad():
            assert torch.isfinite(self.model(self.batches[0])).all()
        return self

    def gen(self) -> Any:
        return ([batch] for batch in self.batches)

    def weight_bits(self) -> dict[str, int]:
        found = {n: m for n, m in self.model.named_children() if hasattr(m, "weights_quantizers")}
        return {name: m.weights_quantizers["weight"].num_bits for name, m in found.items() if m.weights_quantizers}


@pytest.fixture
def run(net: Any, batches: list[Any]) -> Run:
    return Run(net, batches)


def text_of(snippet: Any, *, shown: SettingsInForce | None = None, **fields: Any) -> str:
    """The whole prescription, as it is printed but for the marks of what is changed."""
    given = FIELDS | fields
    code = render_snippet(snippet.code, given, "test") if snippet.code else ""
    before = options_in_force(TOOLCHAIN, FORM, shown or SettingsInForce())
    asked = filled_options(snippet, given, "test")
    calls = [write(form, snippet.forms[form], merge_all([options, before])) for form, options in asked.items()]
    return complete_code("\n".join([code, *calls]), "python", TOOLCHAIN)


def code_of(remedy: str, number: int = 0, **fields: Any) -> str:
    own = [snippet for snippet in BASE.remedies[remedy].snippets if snippet.toolchain == "Sony MCT"]
    return text_of(own[number], **fields)


def default_code() -> str:
    form = TOOLCHAIN.forms[FORM]
    return complete_code(write(FORM, form, {}), "python", TOOLCHAIN)


@pytest.mark.source("mct-target-not-meant", "mct-target-one-resource", "mct-target-softer")
@pytest.mark.parametrize(("remedy", "number"), SNIPPETS)
def test_every_snippet_runs(remedy: str, number: int, run: Run) -> None:
    run(text_of(BASE.remedies[remedy].snippets[number]))


def test_weights_named_get_eight_bits_beside_those_that_a_search_chose(run: Run) -> None:
    shown = SettingsInForce(layers_by_weight={"int4": ("conv2", "fc"), "int2": ("conv3",)})
    for remedy in ("bit-width-override", "more-weight-bits"):
        bits = run(code_of(remedy, shown=shown)).weight_bits()
        assert bits == {"conv1_bn": 8, "fc": 8, "conv2": 4, "conv3": 2, "conv4": 8}


@pytest.mark.source("mct-mixed-precision-images", "mct-last-layer", "mct-hessian-scores", "mct-mixed-precision")
def test_search_settings_arrive(run: Run) -> None:
    weighting = mct.core.MpDistanceWeighting
    shown = SettingsInForce(layers_by_weight={"int4": ("conv2",)})
    assert run(code_of("more-mixed-precision-images", shown=shown)).names["search"].num_of_images == 64
    assert min(run.weight_bits().values()) < 8, "a search ran"
    assert "weight_bits" not in run.names, "bits that are set by hand are none that a search chooses"
    last = run(code_of("last-layer-distance-weighting")).names["search"]
    assert last.distance_weighting_method is weighting.LAST_LAYER
    assert run(code_of("hessian-scores")).names["search"].distance_weighting_method is weighting.HESSIAN


def test_a_wrong_name_is_an_error_for_bits_and_ignored_by_the_editor(net: Any, batches: list[Any]) -> None:
    """What the notes of the snippets say: conv1 is the name in the float model, before it was folded."""
    wrong = {"quantized_layers": ("conv1",), "quantized_tensors": ("conv1",)}
    for remedy in ("bit-width-override", "activations-16-bit"):
        with pytest.raises(Exception, match="No nodes found"):
            Run(net, batches)(code_of(remedy, **wrong))
    assert (
        Run(net, batches)(code_of("keep-layers-float", **wrong)).weight_bits()
        == Run(net, batches)(default_code()).weight_bits()
    )


def test_sixteen_bits_in_front_of_a_convolution_are_refused(net: Any, batches: list[Any]) -> None:
    with pytest.raises(Exception, match="bit-width 16 is invalid"):
        Run(net, batches)(code_of("activations-16-bit", quantized_tensors=("gelu",)))


def test_a_target_outlives_its_call(net: Any, batches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """F022: the search of a call that failed goes on in the next one, unless that has a configuration of its own."""
    quantize = mct.ptq.pytorch_post_training_quantization
    shared = inspect.signature(quantize).parameters["core_config"].default

    def gen() -> Any:
        yield from ([batch] for batch in batches)

    # All calls of this process share it, those of the other tests too.
    for name, value in copy.deepcopy(vars(shared)).items():
        monkeypatch.setattr(shared, name, value)
    with pytest.raises(ValueError, match="cannot be quantized to meet"):
        quantize(net, gen, target_resource_utilization=mct.core.ResourceUtilization(weights_memory=1))
    with pytest.raises(AttributeError, match="total_mem_restricted"):
        quantize(net, gen)
    quantize(net, gen, core_config=mct.core.CoreConfig())
