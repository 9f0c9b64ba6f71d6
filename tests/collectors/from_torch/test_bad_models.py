"""Torch modules that cannot be judged, or hardly: each is said, with where it is and what to do, or it works."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from builders.torch_models import (  # noqa: E402
    ConvNet,
    Dense,
    Many,
    Shared,
    Transformer,
    batches,
    eager,
    fx,
    fx_prepared,
    images,
    made,
    pt2e_prepared,
    rounded,
    rows,
    steps,
    without_fast_path,
)
from torch import nn  # noqa: E402

import quantmedic  # noqa: E402
from quantmedic.collectors.from_torch.module import as_deployed  # noqa: E402
from quantmedic.engine.case.records import Case  # noqa: E402
from quantmedic.engine.errors import QuantmedicError  # noqa: E402
from quantmedic.engine.formulas.derive import derive  # noqa: E402

pytestmark = pytest.mark.thorough

X = rows()
NET = made(Many)
ROUNDED = rounded(NET, X)


def collected(float_module: Any, quantized: Any, data: Any = X, **options: Any) -> Case:
    return quantmedic.collect(float_module, quantized, validation=data, threads=1, **options)


def output_db(case: Case, name: str = "first") -> float:
    facts = derive(case, quantmedic.load_rulebase())
    (layer,) = (layer for layer in facts.layers if layer.name == name)
    found: float = layer.output.data.accumulated.sqnr_db
    return found


class Branching(Many):
    """Decides from the data how many outputs there are."""

    def forward(self, x: Any) -> Any:
        found = super().forward(x)
        return found if float(x.mean()) > float(X[0].mean()) - 1e-6 else found[:1]


class Deciding(Many):
    """Decides from the data what to compute."""

    def forward(self, x: Any) -> Any:
        y = F.relu(self.body(x))
        return self.first(torch.tanh(y) if len(x) < 8 else y)


class Returning(Many):
    """Returns whatever it is told."""

    def __init__(self, found: Callable[..., Any]) -> None:
        super().__init__()
        self.found = found

    def forward(self, x: Any) -> Any:
        return self.found(x, *super().forward(x))


def raising(*about: Any) -> Any:
    raise RuntimeError("out of luck\nand of time")


BAD: dict[str, tuple[Callable[[], tuple[Any, Any]], tuple[str, ...]]] = {
    "swapped": (lambda: (ROUNDED, NET), ("swapped",)),
    "other weights": (lambda: (made(Many, seed=5), ROUNDED), ("do not belong together", "body")),
    "another network": (lambda: (nn.Sequential(nn.GELU(), nn.Softmax(-1)), made(Shared, seed=3)), ("no layer",)),
    "scripted": (lambda: (NET, torch.jit.trace(ROUNDED, X)), ("quantized model is scripted", "scripted from")),
    "a scripted part": (
        lambda: (nn.Sequential(torch.jit.script(nn.Linear(16, 4))), rounded(nn.Sequential(nn.Linear(16, 4)), X)),
        ("float model is scripted", "0"),
    ),
    "no module": (lambda: (None, ROUNDED), ("float model is no torch.nn.Module", "NoneType")),
    "a class": (lambda: (NET, Many), ("quantized model is no torch.nn.Module", "type")),
    "a state": (lambda: (NET, ROUNDED.state_dict()), ("quantized model is no torch.nn.Module", "OrderedDict")),
    "one file": (lambda: ("float.onnx", ROUNDED), ("one model is a file", "float.onnx")),
    "nothing within": (lambda: (nn.Identity(), nn.Identity()), ("no operator", "Identity")),
    "returns nothing": (lambda: both(Returning, lambda *about: None), ("no operator", "NoneType")),
    "returns a number": (lambda: both(Returning, lambda x, a, b: float(a.sum())), ("no operator", "float")),
    "returns a constant": (lambda: both(Returning, lambda *about: torch.ones(3)), ("no operator",)),
    "returns its input": (lambda: both(Returning, lambda x, a, b: x), ("no operator",)),
    "leaves torch": (lambda: both(Returning, lambda x, a, b: torch.from_numpy(a.numpy() * 2)), ("no operator",)),
    "fails": (lambda: (made(Returning, raising), ROUNDED), ("float model fails", "out of luck", "fed with x float32[")),
    "quantized fails": (lambda: (NET, made(Returning, raising)), ("quantized model fails", "out of luck")),
    "has another input": (lambda: (NET, made(Dense)), ("quantized model fails", "64")),
    "returns more now and then": (
        lambda: both(Branching),
        ("returns something else", "tensors: 1 on the first batch, now 2"),
    ),
    "computes something else now and then": (lambda: both(Deciding), ("computes something else", "tanh")),
    "has no memory": (lambda: (copy.deepcopy(NET).to("meta"), ROUNDED), ("meta",)),
}


def both(kind: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    net = made(kind, *arguments)
    return net, rounded(net, X)


def test_what_cannot_be_judged_is_said(subtests):
    for name, (make, said) in BAD.items():
        with subtests.test(name):
            pair = make()
            with pytest.raises(QuantmedicError) as caught:
                collected(*pair, [X[:8], X[8:16], X[16:19]], batch_size=8)
            for words in said:
                assert words in str(caught.value)
            assert caught.value.where and caught.value.help
            assert len(str(caught.value)) < 2000


# --- only prepared ---------------------------------------------------------------------------------------------------


def eager_prepared(net: Any, x: Any) -> Any:
    from torch.ao.quantization import get_default_qconfig, prepare

    found = copy.deepcopy(net)
    found.qconfig = get_default_qconfig("x86")
    prepare(found, inplace=True)(x)
    return found


def test_a_model_that_is_only_prepared_is_told_so(subtests):
    for prepare in (fx_prepared, pt2e_prepared, eager_prepared):
        with subtests.test(prepare.__name__):
            net, x = made(ConvNet), images()
            diagnosis = quantmedic.diagnose(net, prepare(net, x), validation=batches(x))
            # Where preparing left every weight as it is, both modules are one model.
            assert {"not-quantized", "same-model"} & {cause.cause for cause in diagnosis.causes}
            (notice,) = [text for text in diagnosis.warnings if "observers" in text]
            assert "only prepared" in notice and "convert" in notice


def test_fake_quantizers_that_are_off_are_told():
    net, x = made(ConvNet), images()
    quantized = eager(net, x).apply(torch.ao.quantization.disable_fake_quant)
    notices = collected(net, quantized, batches(x)).record.notices
    assert any("switched off" in text and "enable_fake_quant" in text for text in notices)
    healthy = collected(net, eager(net, x), batches(x)).record.notices
    assert not any("switched off" in text or "prepared" in text for text in healthy)


def test_a_fast_path_that_skips_quantizers_is_told():
    net, x = made(Transformer), steps()
    quantized = rounded(net, x)
    case = collected(net, quantized, batches(x))
    assert any("set_fastpath_enabled" in text and "encoder" in text for text in case.record.notices)
    assert any("describe that simulation" in text for text in case.record.notices)
    with without_fast_path():
        case = collected(net, quantized, batches(x))
    assert case.record.notices == ()


# --- unusual, and judged all the same --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> float:
    return output_db(collected(NET, ROUNDED))


def compiled_in_place(module: Any) -> Any:
    found = copy.deepcopy(module)
    found.compile()
    return found


def compiled_part(module: Any) -> Any:
    found = copy.deepcopy(module)
    found.body = torch.compile(found.body)
    return found


@pytest.mark.nightly
def test_wrapped_modules_are_judged(plain, subtests):
    for wrap in (torch.compile, compiled_in_place, compiled_part, nn.DataParallel):
        with subtests.test(wrap.__name__):
            case = collected(NET, wrap(ROUNDED))
            assert output_db(case) == pytest.approx(plain)


@pytest.mark.nightly
def test_modules_in_other_precisions(plain, subtests):
    """The data come in float32 all the same; a quantized module of another precision is fed in its own."""
    for kind in ("bfloat16", "float16", "float64"):
        with subtests.test(kind):
            other = copy.deepcopy(NET).to(getattr(torch, kind))
            assert output_db(collected(other, ROUNDED)) == pytest.approx(plain, abs=1.0)
            case = collected(NET, other)
            expected = {"bfloat16": (35, 65), "float16": (55, 85), "float64": (120, float("inf"))}[kind]
            assert expected[0] < output_db(case) <= expected[1]


def test_buffers_of_every_layout_are_put_back():
    for form in (torch.Tensor.to_sparse, torch.Tensor.clone):
        module = torch.nn.Module()
        module.register_buffer("mask", form(torch.eye(3)))
        with as_deployed(module):
            module.mask.copy_(form(torch.ones(3, 3)))
        assert torch.equal(module.mask.to_dense(), torch.eye(3))


def test_modules_that_train_are_judged_as_deployed():
    net, x = made(ConvNet), images()
    quantized = fx(net, x)
    expected = output_db(collected(net, quantized, batches(x)), "fc")
    training = copy.deepcopy(net).train()
    before = {name: value.clone() for name, value in training.state_dict().items()}
    case = collected(training, quantized, batches(x))
    assert output_db(case, "fc") == pytest.approx(expected)
    assert training.training and training.bn1.training
    assert all(torch.equal(value, before[name]) for name, value in training.state_dict().items())


def test_outputs_that_are_no_result_are_left_out():
    net, quantized = both(Returning, lambda x, a, b: (torch.ones(2), a, {"input": x, "second": b}, None, 3, [a]))
    case = collected(net, quantized)
    assert [output.name for output in case.record.outputs] == ["first", "x", "second", "first"]
    with torch.no_grad():
        x, y = net(X)[1], quantized(X)[1]
    assert output_db(case) == pytest.approx(float(10 * torch.log10((x**2).sum() / ((x - y) ** 2).sum())), abs=1e-3)


def test_memory_that_is_written_to_later_is_measured_before():
    class Overwriting(Many):
        def forward(self, x: Any) -> Any:
            y = self.body(x)
            z = F.relu(y, inplace=True).view(-1)
            z.add_(1.0)
            return self.first(y)

    class Inference(Overwriting):
        @torch.inference_mode()
        def forward(self, x: Any) -> Any:
            return super().forward(x)

    for kind in (Overwriting, Inference):
        with torch.no_grad() if kind is Overwriting else contextlib.nullcontext():
            net, quantized = both(kind)
            case = collected(net, quantized)
        (i,) = (k for k, tensor in enumerate(case.record.tensors) if tensor.float_name == "body")
        assert case.statistics["validation"].tensor(i).min.min() == pytest.approx(float(net.body(X).min()))


# --- mapping ---------------------------------------------------------------------------------------------------------


class Renamed(nn.Module):
    """Many, with two equal heads that only names can tell apart."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.trunk, self.a, self.b = (copy.deepcopy(part) for part in (source.body, source.second, source.first))

    def forward(self, x: Any) -> Any:
        y = F.relu(self.trunk(x))
        return self.b(y), self.a(y)


def test_a_mapping_tells_what_belongs_together():
    net = made(Many)
    with torch.no_grad():
        net.second = nn.Linear(16, 3)
        net.second.load_state_dict(net.first.state_dict())
    quantized = rounded(Renamed(net), X)
    mapping = {"first": "a.linear", "second": "b.linear"}
    record = collected(net, quantized, mapping=mapping).record
    pairs = {op.float_name: op.quantized_name for op in record.operators}
    assert pairs["first"] == "a.linear" and pairs["second"] == "b.linear" and pairs["body"] == "trunk.linear"
    turned = collected(net, quantized, mapping={"first": "b.linear", "second": "a.linear"}).record
    assert {op.float_name: op.quantized_name for op in turned.operators}["first"] == "b.linear"


def test_a_mapping_that_is_wrong_is_said(subtests):
    for mapping, said in (
        ({"bdy": "body.linear"}, ("float model", "did you mean body?")),
        ({"body": "body.linaer"}, ("quantized model", "did you mean body.linear?")),
        ({"nothing alike": "body.linear"}, ("its layers are: body",)),
        (["body"], ("list",)),
        ({"body": "body.linear", "first": "body.linear"}, ("body.linear", "twice")),
    ):
        with subtests.test(str(mapping)):
            with pytest.raises(QuantmedicError) as caught:
                collected(NET, ROUNDED, mapping=mapping)
            assert all(words in str(caught.value) for words in said)
            assert caught.value.where and caught.value.help


def test_a_mapping_is_for_modules(tmp_path):
    from builders.onnx_models import conv_net, qdq, save_pair
    from builders.onnx_models import images as pictures

    paths = save_pair(tmp_path, conv_net(), qdq(conv_net(), {"image": pictures()}))
    with pytest.raises(QuantmedicError, match="mapping"):
        quantmedic.collect(*paths, validation=pictures(), mapping={"conv1": "conv1"})


class Elsewhere(Many):
    """Ends with a tensor that has a shape and no numbers."""

    def forward(self, x: Any) -> Any:
        return super().forward(x)[0].to("meta")


def test_outputs_without_numbers_are_refused() -> None:
    with pytest.raises(QuantmedicError, match="a tensor of a module cannot be read") as caught:
        collected(made(Elsewhere), rounded(made(Elsewhere), X))
    assert "on meta" in str(caught.value)


def test_outputs_of_another_shape_are_refused_or_named() -> None:
    """The last layer is left out of the quantized module."""
    net = made(Dense)
    cut = rounded(net, rows(24, 64), 2)
    cut[2] = nn.Identity()
    case = collected(net, cut, rows(24, 64))
    assert any("differ in shape and are not measured" in notice for notice in case.record.notices)
    with pytest.raises(QuantmedicError, match="outputs of both models have different shapes"):
        quantmedic.search("sensitivity", net, cut, validation=rows(24, 64), threads=1)


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError


class Tiring(Many):
    """Fails after some calls, with an exception whose text cannot be had."""

    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.calls > 3:
            raise Speechless
        return super().forward(x)


def test_an_exception_without_a_text_is_told_by_its_type() -> None:
    with pytest.raises(QuantmedicError, match="fails on this data") as caught:
        collected(made(Tiring), ROUNDED)
    assert "Speechless: its text cannot be shown (ValueError)" in str(caught.value)


def test_a_grid_wider_than_the_numbers_of_the_type() -> None:
    from quantmedic.collectors.from_torch.changes import on_grid  # needs torch
    from quantmedic.engine.formulas.simulate import Grid

    x = torch.tensor([-3e38, 1.0, 2e38])
    assert on_grid(Grid(-1.28e40, 1.27e40, 1e38))(x).tolist() == torch.tensor([-3e38, 0.0, 2e38]).tolist()
