"""Tensors of a device: the layer where it departs is named, rounding is not, and what does not fit is said by name."""

import json
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders.commands import run_quantmedic
from builders.device_dumps import (
    BASE,
    DUMP,
    KINDS,
    LAYERS,
    QUANTIZED,
    X,
    altered,
    collected,
    departing,
    facts_of,
    is_named,
    rounded_otherwise,
    tensors_of,
)
from builders.dump_files import (
    Dump,
    write_archive,
    write_npy,
    write_polygraphy,
    write_samples,
)
from builders.field_patients import demo, quantize, split
from builders.onnx_models import Array, random, save_pair
from builders.recordings import RECORDINGS
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat

import quantmedic
from quantmedic.api.opening import open_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.from_device.dump import open_dump
from quantmedic.collectors.from_device.matched_tensors import match_names
from quantmedic.collectors.measure.plan import pairs_of_case, tap_values
from quantmedic.engine.case.records import DeviceTensorRecord
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.derive import derive
from quantmedic.reports.context import build_context
from quantmedic.reports.sections.columns import layer_columns, presets
from quantmedic.reports.write import render_markdown

pytestmark = pytest.mark.thorough

# --- where a departure begins ----------------------------------------------------------------------------------------


def test_an_altered_layer_is_named_and_none_behind_it(paths: tuple[Path, Path], subtests: pytest.Subtests) -> None:
    for layer, kind in zip(LAYERS[::2], cycle(KINDS), strict=False):
        with subtests.test(layer, kind=kind):
            facts = facts_of(paths, tensors_of(altered(layer, kind), {"image": X}))
            assert is_named(layer, departing(facts))
            assert facts.model.device.departing_layers == 1
            carried = [t for t in facts.tensors if t.device.begins is False and t.device.sqnr_db < 40]
            assert carried or layer == LAYERS[-1], "what is behind the layer differs, too, and is not named"


def test_the_model_itself_departs_nowhere(paths: tuple[Path, Path]) -> None:
    facts = facts_of(paths, tensors_of(QUANTIZED, {"image": X}))
    assert departing(facts) == []
    assert facts.model.device.tensors == len(facts.tensors) and facts.model.device.departing_layers == 0
    assert all(tensor.device.samples == 24 for tensor in facts.tensors)


def test_a_trained_network_by_other_kernels_departs_nowhere(tmp_path: Path) -> None:
    model = demo()
    representative, validation = split(model, 64)
    quantized = quantize(model, representative, tmp_path, quant_format=QuantFormat.QOperator)
    paths = save_pair(tmp_path, model, quantized)
    data = {name: values[:32] for name, values in validation.items() if name != "labels"}
    read = [
        node.output[0]
        for node in quantized.graph.node
        if node.op_type == "QuantizeLinear" or node.op_type.startswith("QLinear")
    ]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(quantized)
    exposed.graph.output.extend(map(helper.make_empty_tensor_value_info, read))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    values = ort.InferenceSession(exposed.SerializeToString(), options).run(read, data)
    facts = facts_of(paths, dict(zip(read, values, strict=True)), validation=data)
    assert departing(facts) == [] and facts.model.device.tensors > 20


def own_tensors(float_model: object, quantized_model: object, data: object, samples: int) -> dict[str, Array]:
    """What the deployed model computes here of the first samples, by the front end of its framework."""
    case = quantmedic.collect(float_model, quantized_model, validation=data, threads=1, rules=BASE, attribution=False)
    models, datasets = open_pair(float_model, quantized_model, CollectOptions(validation=data))
    with models.as_deployed():
        batch = next(datasets["validation"].batches(samples, limit=samples))
        view = models.view(pairs_of_case(models, case), batch, 1)
        reading = view.read_tensors(batch)
        return {view.pairs[i].root: tap_values(tap, np.asarray(reading.codes[i])) for i, tap in view.taps.items()}


@pytest.mark.nightly
def test_a_litert_model() -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    folder = RECORDINGS / "debugger"
    with np.load(folder / "data.npz") as file:
        data = dict(file)
    pair = folder / "float.tflite", folder / "int8.tflite"
    dump = own_tensors(*pair, data, 8)
    assert departing(facts_of(pair, dump, validation=data)) == []
    name = list(dump)[len(dump) // 2]
    dump[name] = dump[name] * np.float32(1.3)
    assert departing(facts_of(pair, dump, validation=data))[0] == (name,)


def test_two_layers_that_depart_are_both_named(paths: tuple[Path, Path]) -> None:
    """The second is told from what the first one sends down, since it is fed with the device's own tensors."""
    model, second = altered("conv0", "scale"), altered("mix2", "bias")
    changed = {t.name: t for t in second.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.name == "mix2.bias_q_codes":
            tensor.CopyFrom(changed[tensor.name])
    found = departing(facts_of(paths, tensors_of(model, {"image": X})))
    assert [any(layer in layers for layers in found) for layer in ("conv0", "mix2")] == [True, True]
    assert len(found) == 2


def test_a_sparse_dump_names_all_layers_in_between(paths: tuple[Path, Path]) -> None:
    dump = tensors_of(altered("mix1", "scale"), {"image": X})
    facts = facts_of(paths, {name: dump[name] for name in ("sum0_dq", "sum1_dq", "scores")})
    assert departing(facts) == [("conv1", "relu1", "mix1", "sum1")]


def test_without_a_network_to_feed_the_first_is_named(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "quantmedic.collectors.from_device.device_departures._simulation"
    monkeypatch.setattr(module, lambda *given: None)
    facts = facts_of(paths, tensors_of(altered("mix1", "channels"), {"image": X}))
    assert is_named("mix1", departing(facts))
    behind = {tensor.name: tensor.device.begins for tensor in facts.tensors}
    assert behind["relu1"] is False and behind["sum1"] is None, "what reads a departing tensor is not judged"
    assert departing(facts_of(paths, rounded_otherwise(0))) == [], "rounding adds up"


def test_the_rule_names_the_layer_and_not_the_model(paths: tuple[Path, Path]) -> None:
    dump = tensors_of(altered("mix1", "channels"), {"image": X})
    case = collected(paths, dump, device_outputs=dump["scores"])
    causes = {cause.cause: cause for cause in quantmedic.judge(case, BASE).causes}
    assert causes["device-departs"].subjects == ("mix1",)
    assert "simulator-differs-from-device" not in causes
    without = quantmedic.collect(*paths, validation=X, threads=1, rules=BASE, device_outputs=dump["scores"])
    assert "simulator-differs-from-device" in {cause.cause for cause in quantmedic.judge(without, BASE).causes}


def test_where_the_device_loses_the_task_its_layer_comes_first(paths: tuple[Path, Path]) -> None:
    labels = tensors_of(QUANTIZED, {"image": X})["scores"].argmax(axis=1)
    dump = tensors_of(altered("mix1", "channels"), {"image": X})
    said = quantmedic.judge(collected(paths, dump, device_outputs=dump["scores"], labels=labels), BASE)
    assert said.model.device.metric_loss > 0.1
    assert [cause.cause for cause in said.causes[:2]] == ["device-departs", "simulator-differs-from-device"]
    assert said.causes[0].severity == "high" and build_context(said, {}).first.code == "R006"


def test_a_kernel_that_takes_another_output_scale_is_named_with_that_scale(paths: tuple[Path, Path]) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(QUANTIZED)
    reader = next(node for node in model.graph.node if node.output[0] == "relu1_dq")
    stated = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == reader.input[1])
    model.graph.initializer.append(numpy_helper.from_array((0.6 * stated).astype(np.float32), "taken"))
    reader.input[1] = "taken"
    case = collected(paths, tensors_of(model, {"image": X}))
    (named,) = [c for c in quantmedic.judge(case, BASE).causes if c.cause == "device-departs"]
    assert named.rules[0] == "R017" and "0.600 times" in named.message and f"{stated / 0.6:.6f}" in named.message


def test_a_sound_model_on_a_device_that_departs_is_called_so(paths: tuple[Path, Path]) -> None:
    """Not degraded: here it loses nothing."""
    dump = tensors_of(altered("mix1", "channels"), {"image": X})
    said = quantmedic.diagnose(*paths, validation=X, threads=1, attribution=False, device_tensors=dump)
    context = build_context(said, {})
    assert said.verdict == "degraded", "what gates read stays"
    assert context.verdict_word == "device-departs"
    assert context.verdict_text.startswith("The device computes other values than the quantized model")
    assert "# DEVICE DEPARTS:" in render_markdown(context)
    sound = quantmedic.diagnose(
        *paths, validation=X, threads=1, attribution=False, device_tensors=tensors_of(QUANTIZED, {"image": X})
    )
    assert build_context(sound, {}).verdict_word == sound.verdict != "degraded"


def test_the_case_keeps_it_and_the_report_shows_it(paths: tuple[Path, Path], tmp_path: Path) -> None:
    case = collected(paths, tensors_of(altered("mix1", "channels"), {"image": X}))
    quantmedic.save_case(case, tmp_path / "x.case")
    again = quantmedic.load_case(tmp_path / "x.case")
    assert again.record.device == case.record.device
    rows = {row.name: row for row in quantmedic.judge(again, BASE).layers}
    assert rows["mix1"].device_departs and rows["mix1"].device_sqnr_db < 10
    assert rows["sum1"].device_departs is False and rows["sum1"].device_sqnr_db < 10
    table = presets(layer_columns(derive(again, BASE).layers, [()] * len(rows)), "validation")
    assert "output.device.sqnr_db" in table["default"].columns


def test_other_values_at_the_input_are_said(paths: tuple[Path, Path]) -> None:
    case = collected(paths, tensors_of(QUANTIZED, {"image": X * 0.5}))
    assert any(
        "fed with other values, or in another order" in notice and "image" in notice for notice in case.record.notices
    )
    assert departing(derive(case, BASE)) == []


def test_a_first_layer_that_departs_is_named_where_the_input_is_there(paths: tuple[Path, Path]) -> None:
    """Everything behind it may be like nothing: the input tells that the dump is of these samples."""
    spoiled = {name: random(7 + k, *values.shape) for k, (name, values) in enumerate(DUMP.items())}
    case = collected(paths, spoiled | {"image_dq": DUMP["image_dq"]})
    assert not any("correlate with nothing" in notice for notice in case.record.notices)
    assert any("conv0" in layers for layers in departing(derive(case, BASE)))


# --- forms of dumps --------------------------------------------------------------------------------------------------


FORMS: dict[str, Callable[[Path, Dump], Path]] = {
    "npy": write_npy,
    "npz": write_archive,
    "compressed npz": lambda path, dump: write_archive(path, dump, np.savez_compressed),
    "raw of samples": write_samples,
    "npy of samples": lambda folder, dump: write_samples(folder, dump, ".npy"),
    "Polygraphy": write_polygraphy,
    "raw from 1": lambda folder, dump: write_samples(folder, dump, first=1),
    "raw NHWC": lambda folder, dump: write_samples(folder, dump, last=True),
    "Polygraphy, decoded": lambda path, dump: write_polygraphy(path, dump, lazy=False),
}


@pytest.mark.nightly
def test_every_form_gives_the_same(
    paths: tuple[Path, Path], wanted: tuple[DeviceTensorRecord, ...], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for form, write in FORMS.items():
        with subtests.test(form):
            case = collected(paths, write(tmp_path / form, DUMP))
            assert case.record.device.samples == 24 and case.record.device.tensors == wanted
            said = any("of 2 runners the first was read, trt-runner" in notice for notice in case.record.notices)
            assert said == ("Polygraphy" in form)


@pytest.mark.nightly
def test_what_a_newcomer_dumps_is_judged_as_far_as_it_fits(
    paths: tuple[Path, Path], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Some tensors are missing, one has a name of its own, there are ten samples, channels come last."""
    unneeded = ("relu0_dq", "sum2_dq")  # neither of the altered layer nor of what it reads or writes to
    dump = {name: values[:10] for name, values in DUMP.items() if name not in unneeded}
    dump["stranger"] = dump.pop("pool_dq")
    dump = {name: np.moveaxis(values, 1, -1) if values.ndim == 4 else values for name, values in dump.items()}
    for form in ("npz", "raw of samples", "Polygraphy"):
        with subtests.test(form):
            case = collected(paths, FORMS[form](tmp_path / form, dump))
            assert case.record.device.samples == 10
            assert is_named("mix1", departing(derive(case, BASE)))
            text = "\n".join(case.record.notices)
            assert not [name for name in ("relu0", "sum2", "pool", "stranger") if name not in text]


def test_codes_are_compared_as_codes(paths: tuple[Path, Path], wanted: tuple[DeviceTensorRecord, ...]) -> None:
    """Also where the device counts from -128 and the model from 0."""
    stored = {t.name: numpy_helper.to_array(t) for t in QUANTIZED.graph.initializer}
    codes = {}
    for name, values in DUMP.items():
        scale, zero = (stored[f"{name}_codes_{part}"] for part in ("scale", "zero"))
        codes[name] = (np.rint(values / scale) + zero - 128.0).astype(np.int8)
    for code, real in zip(collected(paths, codes).record.device.tensors, wanted, strict=True):
        assert code.nmse == pytest.approx(real.nmse, rel=1e-3, abs=1e-9)
        assert code.own_steps == pytest.approx(real.own_steps, rel=1e-3, abs=1e-9)


def test_raw_files_of_codes(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """qnn-net-run --use_native_output_files: one byte per value, and a name that says so."""
    stored = {t.name: numpy_helper.to_array(t) for t in QUANTIZED.graph.initializer}
    for k in range(len(X)):
        folder = tmp_path / f"Result_{k}"
        folder.mkdir()
        codes = np.rint(DUMP["mix1_dq"][k] / stored["mix1_dq_codes_scale"]) + stored["mix1_dq_codes_zero"]
        (folder / "mix1_native.raw").write_bytes(codes.astype(np.uint8).tobytes())
    found = collected(paths, tmp_path).record
    assert [found.tensors[t.tensor].name for t in found.device.tensors] == ["mix1"]
    dump = collected(paths, {"mix1_dq": DUMP["mix1_dq"]}).record.device
    assert found.device.tensors[0].nmse == pytest.approx(dump.tensors[0].nmse, rel=1e-3)


def test_other_batches_give_the_same(
    paths: tuple[Path, Path], wanted: tuple[DeviceTensorRecord, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it matter that many tensors are not held open: each run reads on where the last one ended."""
    monkeypatch.setattr("quantmedic.collectors.from_device.device_departures.MAX_SAMPLES", 5)
    monkeypatch.setattr("quantmedic.collectors.from_device.device_departures.HELD", 2)
    found = collected(paths, write_archive(tmp_path / "d", DUMP)).record.device.tensors
    for one, other in zip(found, wanted, strict=True):
        assert one.nmse == pytest.approx(other.nmse, rel=1e-6)
        assert one.own_nmse == pytest.approx(other.own_nmse, abs=1e-6)


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_as_tools_write_them(paths: tuple[Path, Path]) -> None:
    names = {"conv0": "conv0_dq", "mix0": "mix0_dq", "relu0": "relu0_dq_codes", "sum1": "SUM1"}
    names |= {"mix1": "mix1.dq", "relu1": "_relu1_dq", "pool": "pool_dq"}
    known = {shown: name for name, shown in names.items() if f"{name}_dq" in DUMP}
    record = collected(paths, {shown: DUMP[f"{name}_dq"] for shown, name in known.items()}).record
    assert len(known) > 4 and {record.tensors[t.tensor].name for t in record.device.tensors} == {*known.values()}


def test_a_map_of_names(paths: tuple[Path, Path], tmp_path: Path) -> None:
    dump = {"node_17": DUMP["mix1_dq"], "other": DUMP["sum1_dq"]}
    (tmp_path / "names.json").write_text(json.dumps({"node_17": "mix1", "gone": "sum0"}))
    case = collected(paths, dump, device_names=tmp_path / "names.json")
    assert [case.record.tensors[t.tensor].name for t in case.record.device.tensors] == ["mix1"]
    text = "\n".join(case.record.notices)
    assert "other" in text and "gone" in text and "lacks" in text
    with pytest.raises(DataError, match="cannot be read in both models") as error:
        collected(paths, dump, device_names={"node_17": "mix_1x"})
    assert "node_17" in str(error.value)


def test_what_is_missing_or_does_not_fit_is_said_and_the_rest_judged(paths: tuple[Path, Path]) -> None:
    dump = {name: values for name, values in DUMP.items() if name in ("conv0", "relu0_dq", "sum1_dq", "mix1_dq")}
    dump |= {
        "relu2_dq": DUMP["relu2_dq"][:7],
        "mix0_dq": DUMP["mix0_dq"][:, :, :3],
        "stranger": DUMP["relu0_dq"],
        "sum2": np.zeros(24, object),
        "pool": DUMP["pool_dq"].astype(str),
    }
    case = collected(paths, dump)
    named = [case.record.tensors[t.tensor].name for t in case.record.device.tensors]
    assert named == ["relu0", "mix1", "sum1"]
    text = "\n".join(case.record.notices)
    for part in (
        "other numbers of samples than most, which hold 24: relu2_dq 7",
        "mix0_dq: a sample has (6, 3, 8) where the model has (6, 8, 8)",
        "stranger",
        "no array of numbers for samples: sum2 (24,) object, pool (24, 6, 1, 1)",
        "lacks",
    ):
        assert part in text, text


def test_more_samples_than_the_data(paths: tuple[Path, Path]) -> None:
    more = collected(paths, {name: np.concatenate([values, values]) for name, values in DUMP.items()})
    assert more.record.device.samples == 24
    assert any("holds 48 samples" in notice for notice in more.record.notices)


def test_the_dump_of_another_model(paths: tuple[Path, Path]) -> None:
    """Its names fit by chance, and its shapes: no layer is named."""
    others = {name: random(999 + k, *values.shape) for k, (name, values) in enumerate(DUMP.items())}
    case = collected(paths, others)
    assert any("of 13 tensors correlate with nothing of this model" in n for n in case.record.notices)
    facts = derive(case, BASE)
    assert departing(facts) == [] and facts.model.device.departing_layers in (0, None)
    with pytest.raises(DataError, match="is one of the model") as error:
        collected(paths, {"encoder/block": DUMP["mix1_dq"]})
    assert not [said for said in ("encoder/block", "relu0", "device_names") if said not in str(error.value)]


def test_numbers_that_are_not_finite(paths: tuple[Path, Path]) -> None:
    spoiled = {name: values.copy() for name, values in DUMP.items()}
    spoiled["relu0_dq"][3] = np.nan
    case = collected(paths, spoiled)
    assert any("NaN or infinite on the device" in n and "relu0" in n for n in case.record.notices)
    assert any("relu0" in layers for layers in departing(derive(case, BASE)))


# --- what is refused -------------------------------------------------------------------------------------------------


def test_nothing_outside_of_the_folder_is_read(paths: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", DUMP["mix1_dq"])
    folder = write_npy(tmp_path / "d", {"sum1_dq": DUMP["sum1_dq"]})
    for target in (tmp_path / "secret.npy", folder / "nothing", folder / "mix1_dq.npy"):
        (folder / "mix1_dq.npy").symlink_to(target)
        with pytest.raises(DataError, match="leads out of its folder, or nowhere"):
            collected(paths, folder)
        (folder / "mix1_dq.npy").unlink()
    (folder / "mix1_dq.npy").symlink_to(folder / "sum1_dq.npy")
    assert collected(paths, folder).record.device is not None


def test_names_of_litert_stand_alone_too() -> None:
    pairs = [SimpleNamespace(root="net/relu/Relu;net/conv/BiasAdd", twin="t1", tap=SimpleNamespace(tensor=""))]
    graph = SimpleNamespace(roots={}, root=str, producers={})
    models = SimpleNamespace(pairs=pairs, quantized=graph)
    dump = open_dump({"net_conv_BiasAdd": np.zeros((2, 3), np.float32)})
    assert list(match_names(dump, models, {}).tensors) == [pairs[0].root]  # type: ignore[arg-type]


def test_no_pickle_is_loaded(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = write_npy(tmp_path / "d", {"sum1_dq": DUMP["sum1_dq"]})
    np.save(folder / "mix1_dq.npy", np.array([print], object), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects"):
        collected(paths, folder)


def test_folders_of_samples_that_cannot_be_told(paths: tuple[Path, Path], tmp_path: Path) -> None:
    damages: dict[str, Callable[[Path], object]] = {
        "folder of a sample is missing": lambda folder: shutil.rmtree(folder / "Result_3"),
        "two folders": lambda folder: (folder / "0").mkdir(),
        "holds no tensors": lambda folder: [f.unlink() for f in folder.rglob("*.raw")],
    }
    for message, damage in damages.items():
        folder = write_samples(tmp_path / message, {"mix1_dq": DUMP["mix1_dq"]})
        damage(folder)
        with pytest.raises(DataError, match=message):
            collected(paths, folder)


def test_a_tensor_that_one_sample_lacks(paths: tuple[Path, Path], tmp_path: Path) -> None:
    folder = write_samples(tmp_path / "d", {name: DUMP[name] for name in ("mix1_dq", "sum1_dq", "relu1_dq")})
    (folder / "Result_2" / "mix1_dq.raw").unlink()
    (folder / "Result_4" / "sum1_dq.raw").write_bytes(b"1234")
    case = collected(paths, folder)
    assert [case.record.tensors[t.tensor].name for t in case.record.device.tensors] == ["relu1"]
    text = "\n".join(case.record.notices)
    assert "mix1_dq.raw: Result_2 does not hold it" in text
    assert "sum1_dq.raw: its samples differ in size" in text


def test_what_is_no_dump(paths: tuple[Path, Path]) -> None:
    for given in ("nowhere", __file__, 3, {}):
        with pytest.raises(DataError):
            collected(paths, given)


def test_inputs_have_to_be_given(paths: tuple[Path, Path]) -> None:
    with pytest.raises(DataError, match="without the inputs"):
        collected(paths, DUMP, validation=None, representative=X)
    with pytest.raises(DataError, match="without the tensors"):
        collected(paths, None, device_names={"a": "mix1"})


def test_the_command(paths: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "val.npz", image=X)
    write_npy(tmp_path / "d", DUMP)
    words = ["diagnose", *map(str, paths), "-v", str(tmp_path / "val.npz"), "--no-prove", "--no-attribution"]
    run_quantmedic(*words, "-o", str(tmp_path / "report"), "--device-tensors", str(tmp_path / "d"))
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert "device-departs" in {cause["cause"] for cause in report["causes"]}
