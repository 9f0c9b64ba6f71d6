"""Devices of onnxruntime: what is asked of its providers, and what it says where there are none."""

from pathlib import Path

import onnxruntime as ort
import pytest
from builders.onnx_models import Net, random

import quantmedic
from quantmedic.collectors.from_onnx.onnx_models import open_models
from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.collectors.from_onnx.providers import (
    CPU,
    CUDA,
    RECORDED,
    chosen_providers,
    describe_assignment,
    providers_of,
    sessions_on,
)
from quantmedic.engine.errors import ModelError

without_cuda = pytest.mark.skipif(CUDA in ort.get_available_providers(), reason="onnxruntime has CUDA here")


def network() -> Net:
    net = Net()
    net.conv(net.input("x", ["n", 3, 8, 8]), random(1, 4, 3, 3, 3), random(2, 4), out="y")
    net.output(net.add("Relu", "y", out="z"), shape=["n", 4, None, None])
    return net


@without_cuda
def test_cuda_without_its_provider_names_what_to_install() -> None:
    with pytest.raises(ModelError, match="without CUDA\n  --device cuda:7\n") as error:
        providers_of("cuda:7")
    assert "onnxruntime-gpu" in str(error.value)


def test_other_devices_are_refused() -> None:
    for device in ("gpu", "mps", "cuda:x", "cpu:1"):
        with pytest.raises(ModelError, match="not run on this device"):
            providers_of(device)


@pytest.mark.skipif("AzureExecutionProvider" not in ort.get_available_providers(), reason="another build")
def test_sessions_are_made_with_the_chosen_providers() -> None:
    with sessions_on(["AzureExecutionProvider", CPU]):
        session = make_session(network().model(), Path("net.onnx"), 1)
    assert session.get_providers() == ["AzureExecutionProvider", CPU]
    assert list(chosen_providers()) == [CPU]
    assert make_session(network().model(), Path("net.onnx"), 1).get_providers() == [CPU]


@without_cuda
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_falls_back_to_the_processor_is_refused() -> None:
    """onnxruntime says nothing where it cannot start a device, and goes on without."""
    cuda = [(CUDA, {"device_id": "7"}), CPU]
    with sessions_on(cuda), pytest.raises(ModelError, match=f"could not start the device\n  {CUDA} 7 asked for"):
        make_session(network().model(), Path("net.onnx"), 1)
    assert list(chosen_providers()) == [CPU]


@pytest.mark.skipif(not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"), reason="too old")
def test_it_is_told_which_provider_got_which_nodes() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(RECORDED, "1")
    session = ort.InferenceSession(network().model().SerializeToString(), options, providers=[CPU])
    assert describe_assignment("net.onnx", session) == f"net.onnx: 2 of 2 nodes are run by {CPU}"


@without_cuda
def test_a_pair_is_not_collected_on_a_device_that_is_missing(tmp_path: Path) -> None:
    files = [str(network().save(tmp_path / name)) for name in ("float.onnx", "int8.onnx")]
    with pytest.raises(ModelError, match="without CUDA"):
        quantmedic.collect(*files, validation=random(3, 4, 3, 8, 8), device="cuda")
    models = open_models(*map(Path, files))
    models.run_on("cpu")
    assert models.float_graph.notices == []


@pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason="onnxruntime has no CUDA here")
def test_a_pair_is_collected_on_cuda(tmp_path: Path) -> None:
    files = [str(network().save(tmp_path / name)) for name in ("float.onnx", "int8.onnx")]
    case = quantmedic.collect(*files, validation=random(3, 4, 3, 8, 8), device="cuda")
    assert case.record.run["device"] == "cuda"
    assert sum(CUDA in notice for notice in case.record.notices) == 2
