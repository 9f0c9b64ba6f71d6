"""Modules that were exported for one size of batch are fed with exactly that."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao", reason="torchao is not installed")

from builders import torch_models as zoo  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86  # noqa: E402

from quantmedic import collect, judge  # noqa: E402
from quantmedic.engine.errors import ModelError  # noqa: E402

pytestmark = pytest.mark.thorough

SIZE = 8


def exported(net: Any, size: int = SIZE) -> Any:
    return torch.export.export(copy.deepcopy(net), (zoo.images(size),)).module()


def fixed(net: Any, size: int = SIZE) -> Any:
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported(net, size), quantizer)
    prepared(zoo.images(size) * 0.2)
    return convert_pt2e(prepared)


def test_the_figures_are_those_of_a_module_with_a_free_batch() -> None:
    net, x = zoo.made(zoo.ConvNet), zoo.images(24)
    quantized = fixed(net)
    with pytest.raises(AssertionError, match="Guard failed"):
        quantized(x)
    case = collect(net, quantized, validation=x, batch_size=32)
    found = judge(case).model.output_sqnr_db
    wanted = torch.cat([quantized(part) for part in x.split(SIZE)])
    assert found == pytest.approx(zoo.sqnr_db(net(x), wanted), abs=1e-3)
    assert case.record.datasets["validation"].seen == 24
    assert not any("left out" in notice for notice in case.record.notices)


def test_what_does_not_fill_a_batch_is_left_out_and_said() -> None:
    net, x = zoo.made(zoo.ConvNet), zoo.images(21)
    quantized = fixed(net)
    for data in (x, zoo.batches(x, 7)):
        case = collect(net, quantized, validation=data)
        assert case.record.datasets["validation"].seen == 16
        assert [notice for notice in case.record.notices if "5 samples were left out" in notice]


def test_a_float_module_may_be_exported_too_but_for_the_same_size() -> None:
    net, x = zoo.made(zoo.ConvNet), zoo.images(16)
    assert collect(exported(net), fixed(net), validation=x).record.datasets["validation"].seen == 16
    with pytest.raises(ModelError, match="batches of different sizes") as error:
        collect(exported(net, 4), fixed(net), validation=x)
    assert "float 4, quantized 8" in str(error.value.where)


def test_remedies_are_tried_on_it() -> None:
    net, x = zoo.made(zoo.ConvNet), zoo.images(160)
    case = collect(net, fixed(net), representative=x[:64], validation=x[64:], prove=600)
    assert case.record.proof is not None
    assert any(trial.proven for trial in case.record.proof.trials)
