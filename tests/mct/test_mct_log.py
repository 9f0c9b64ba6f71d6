"""The log folder against the quantized models that the real toolkit returned."""

import os
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from quantmedic.collectors.from_settings.mct_log import fitting_mct_log, read_mct_log, why_stale  # noqa: E402
from quantmedic.engine.errors import DataError  # noqa: E402
from quantmedic.engine.reading_limits import EVENT_BYTES, IMPORTED_LAYERS, LimitError  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]

HOLDER = "_activation_holder_quantizer"


def quantize(net, batches, target: float | None = None, edits=(), mixed: dict | None = None, **options):
    """The toolkit's model; ``target`` is the share of 8-bit weight memory that a search has to meet."""
    config = mct.core.CoreConfig(
        quantization_config=mct.core.QuantizationConfig(**options),
        mixed_precision_config=mct.core.MixedPrecisionQuantizationConfig(num_of_images=4, **(mixed or {})),
        debug_config=mct.core.DebugConfig(network_editor=list(edits)),
    )
    size = sum(p.numel() for name, p in net.named_parameters() if name.endswith("weight") and "bn" not in name)
    wanted = mct.core.ResourceUtilization(weights_memory=target * size) if target else None
    model, _ = mct.ptq.pytorch_post_training_quantization(
        net, lambda: ([batch] for batch in batches), target_resource_utilization=wanted, core_config=config
    )
    return model


def holders(model) -> dict:
    found = {name: module for name, module in model.named_children() if name.endswith(HOLDER)}
    return {name.removesuffix(HOLDER): module.activation_holder_quantizer for name, module in found.items()}


def thresholds(model) -> dict[str, float]:
    return {name: float(quantizer.threshold_np) for name, quantizer in holders(model).items()}


def node_of(log, name: str):
    return next(node for node in log.nodes if node.name == name)


def names(model) -> list[str]:
    return [name.removesuffix(HOLDER) for name, _ in model.named_children()]


def test_thresholds_and_bits_are_those_of_the_model(net, batches, log_folder) -> None:
    model = quantize(net, batches, target=0.6)
    log = read_mct_log(log_folder)
    quantizers = holders(model)
    quantized = {node.name: node for node in log.nodes if node.quantized}
    assert quantized.keys() == quantizers.keys()
    for name, quantizer in quantizers.items():
        assert quantized[name].bits == quantizer.num_bits
        assert quantized[name].threshold == pytest.approx(float(quantizer.threshold_np))
        assert quantized[name].signed == quantizer.signed
    weights = {n: m.weights_quantizers["weight"] for n, m in model.named_children() if hasattr(m, "weights_quantizers")}
    assert len({quantizer.num_bits for quantizer in weights.values()}) > 1, "the search must choose different bits"
    assert log.settings.mixed_precision is True


def test_extremes(net, batches, log_folder) -> None:
    quantize(net, batches)
    log = read_mct_log(log_folder)
    assert node_of(log, "x").minimum == pytest.approx(min(float(batch.min()) for batch in batches))
    assert node_of(log, "x").maximum == pytest.approx(max(float(batch.max()) for batch in batches))
    assert node_of(log, "conv2").bits is None, "its output stays float in front of the activation"
    assert log.settings.mixed_precision is False and log.settings.learned_rounding is False


def test_settings_are_those_given(net, batches, log_folder) -> None:
    method = mct.core.QuantizationErrorMethod.KL
    quantize(net, batches, z_threshold=6.0, activation_error_method=method, weights_bias_correction=False)
    told = read_mct_log(log_folder).settings
    assert (told.z_threshold, told.activation_error_method, told.bias_correction) == (6.0, "KL", False)
    assert (told.shift_negative, told.shift_negative_ratio) == (True, 0.05)


@pytest.mark.parametrize(("ratio", "is_shifted"), [(0.05, False), (0.5, True)])
def test_the_shift_acts_only_up_to_its_ratio(net, batches, log_folder, ratio, is_shifted) -> None:
    """SiLU feeds a concatenation, which stops the shift whatever its ratio; GELU feeds a convolution."""
    quantize(net, batches, shift_negative_ratio=ratio)
    log = read_mct_log(log_folder)
    assert log.settings.shift_negative_ratio == pytest.approx(ratio)
    assert node_of(log, "gelu").bits == (16 if is_shifted else 8)


def test_the_newest_quantization_counts_and_an_older_one_may_fit(net, batches, log_folder) -> None:
    first = quantize(net, batches)
    second = quantize(net, [8 * batch for batch in batches])
    assert node_of(read_mct_log(log_folder), "x").threshold == thresholds(second)["x"] != thresholds(first)["x"]
    for model in (first, second):
        log, why = fitting_mct_log(log_folder, names(model), thresholds(model))
        assert why is None and log is not None
        assert node_of(log, "x").threshold == thresholds(model)["x"]


def test_every_way_to_name_the_folder(net, batches, log_folder) -> None:
    quantize(net, batches)
    (run,) = log_folder.iterdir()
    assert read_mct_log(log_folder) == read_mct_log(run) == read_mct_log(log_folder.parent)


def test_stale_folders_are_said(net, batches, log_folder) -> None:
    model = quantize(net, batches)
    log = read_mct_log(log_folder)
    assert why_stale(log, names(model), thresholds(model)) is None
    assert "lacks 1 of" in (why_stale(log, [*names(model), "conv7"]) or "")
    assert "threshold of relu" in (why_stale(log, names(model), thresholds(model) | {"relu": 64.0}) or "")
    found, why = fitting_mct_log(log_folder, ["conv7"])
    assert found is None and "stale" in (why or "")


def test_gradient_based_quantization_is_seen(net, batches, log_folder) -> None:
    config = mct.gptq.get_pytorch_gptq_config(
        n_epochs=1, use_hessian_based_weights=False, use_hessian_sample_attention=False
    )
    mct.gptq.pytorch_gradient_post_training_quantization(
        net, lambda: ([batch] for batch in batches), gptq_config=config
    )
    log = read_mct_log(log_folder)
    assert log.settings.learned_rounding is True


def test_a_log_that_was_cut_off(net, batches, log_folder) -> None:
    """A killed process leaves half a record at the end; what stands before it counts."""
    quantize(net, batches)
    whole = read_mct_log(log_folder)
    (chosen,) = log_folder.rglob("thresholds_selection/events.*")
    os.truncate(chosen, chosen.stat().st_size // 2)
    assert read_mct_log(log_folder).nodes == whole.nodes
    for stage in ("thresholds_selection", "after_shift_negative_correction"):
        shutil.rmtree(next(log_folder.rglob(stage)))
    log = read_mct_log(log_folder)
    assert node_of(log, "x").minimum is None and node_of(log, "x").threshold == node_of(whole, "x").threshold


def test_folders_without_a_log_are_said(tmp_path: Path) -> None:
    for folder, says in ((tmp_path / "nothing", "is missing"), (tmp_path, "no event files")):
        found, why = fitting_mct_log(folder, ["conv"])
        assert found is None and says in (why or "") and "not judged" in (why or "")
    file = tmp_path / "tensorboard_logs" / "initial_graph" / "events.out.tfevents.1700000000.host.1.0"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no event file" * 10)
    with pytest.raises(DataError, match="event file"):
        read_mct_log(tmp_path)
    found, why = fitting_mct_log(tmp_path, ["conv"])
    assert found is None and "stale" in (why or "")


def written_graph(folder: Path, nodes: int) -> Path:
    """An event file with a graph of so many nodes."""
    from tensorboard.compat.proto.event_pb2 import Event  # optional package
    from tensorboard.compat.proto.graph_pb2 import GraphDef  # optional package
    from tensorboard.compat.proto.node_def_pb2 import NodeDef  # optional package
    from tensorboard.summary.writer.record_writer import RecordWriter  # optional package

    file = folder / "tensorboard_logs" / "initial_graph" / "events.out.tfevents.1700000000.host.1.0"
    file.parent.mkdir(parents=True)
    graph = GraphDef(node=[NodeDef(name=f"conv{number}", op="Conv2d") for number in range(nodes)])
    with file.open("wb") as stream:
        RecordWriter(stream).write(Event(graph_def=graph.SerializeToString()).SerializeToString())
    return file


def test_what_has_no_bounds_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files, large graphs, and a pipe in place of a file."""
    file = written_graph(tmp_path, 20)
    assert len(read_mct_log(tmp_path).nodes) == 20
    limits = ((EVENT_BYTES, "an event file of MCT has too many bytes"), (IMPORTED_LAYERS, "tensors and layers"))
    for limit, said in limits:
        with monkeypatch.context() as lowered:
            lowered.setenv(limit.variable, "19")
            for read in (lambda: read_mct_log(tmp_path), lambda: fitting_mct_log(tmp_path, ["conv0"])):
                with pytest.raises(LimitError, match=said) as raised:
                    read()
                assert raised.value.where == (str(file),)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="a pipe or a device"):
        read_mct_log(tmp_path)
