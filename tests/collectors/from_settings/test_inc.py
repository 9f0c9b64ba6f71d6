"""Files of Intel Neural Compressor: recorded ones of versions 2.3 and 2.6 (data/inc/README.md), and hostile ones.

Where a file is written here, it follows the source of 2.6.
"""

import csv
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders.recordings import RECORDINGS
from click.testing import CliRunner

import quantmedic
from quantmedic.cli.main import cli
from quantmedic.collectors.from_settings.inc_config import imported_config
from quantmedic.collectors.from_settings.inc_tensors import normalized_mse
from quantmedic.collectors.from_settings.pickled_arrays import read_arrays
from quantmedic.collectors.toolchain_files.formats import Imported, recognise_format
from quantmedic.engine.case.facts import ModelFacts, SettingsFacts, TensorFacts
from quantmedic.engine.errors import DataError
from quantmedic.engine.reading_limits import LimitError
from quantmedic.engine.rules.evaluate import decide
from quantmedic.engine.rules.toolchain_options import fill

DATA = RECORDINGS / "inc"
FP32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}


def read(path: Path) -> Imported:
    return recognise_format(path).read(path)


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def table(name: str) -> dict[str, dict[str, float]]:
    """A table of numbers by operator, read without the code under test."""
    head, *rows = [line.split(",") for line in (DATA / name).read_text().splitlines()]
    return {row[0]: dict(zip(head[1:], map(float, row[1:]), strict=True)) for row in rows}


class TestConfiguration:
    @pytest.mark.source("insights-configuration")
    def test_arguments_of_version_2(self):
        found = imported_config(
            {
                "approach": "static",
                "calibration_sampling_size": [50],
                "reduce_range": True,
                "recipes": {"smooth_quant": True, "first_conv_or_matmul_quantization": False},
                "op_type_dict": {
                    "Softmax": {"activation": {"dtype": "fp32"}},
                    ".*": {"weight": {"granularity": ["per_channel"]}, "activation": {"algorithm": ["percentile"]}},
                },
                "op_name_dict": {"/a/Conv": FP32, "/b/Conv": {"weight": {"dtype": ["int8"]}}},
            },
            "conf.json",
        )
        told = found.settings
        assert (told.toolchain, told.dynamic, told.smooth_quant, told.reduce_range) == (
            "Intel Neural Compressor",
            False,
            True,
            True,
        )
        assert (told.calibration_method, told.percentile) == ("percentile", 99.999)
        assert told.per_channel_weights is True
        assert (told.float_layers, told.float_types) == (("/a/Conv",), ("Softmax",))
        assert found.unknown == ()
        assert "first convolution" in found.notices[0]

    def test_what_holds_for_all_operators_is_told(self):
        """Not what is said of some, and not a scheme that version 2 takes in vain; several values are a search."""
        said = {"weight": {"granularity": ["per_tensor"]}, "activation": {"algorithm": ["kl"]}}
        told = imported_config({"op_type_dict": {"Conv": said}, "op_name_dict": {"/a": said}}, "conf").settings
        assert (told.per_channel_weights, told.calibration_method) == (None, None)
        for own, fact, value in (
            ({"scheme": ["asym"]}, "asymmetric_activations", True),
            ({"scheme": ["sym"]}, "asymmetric_activations", None),
            ({"algorithm": ["minmax", "kl"]}, "calibration_method", "search"),
        ):
            found = imported_config({"op_type_dict": {".*": {"activation": own}}}, "c").settings
            assert getattr(found, fact) == value, own

    def test_recipes_that_are_dropped_are_not_claimed(self):
        for key in ("fast_bias_correction", "weight_correction"):
            found = imported_config({"recipes": {key: True}}, "conf")
            assert found.settings.bias_correction is False
            assert f"recipes.{key} is taken and does nothing" in found.notices[0]

    @pytest.mark.source("insights-configuration")
    def test_unknown_keys_are_named_with_the_nearest(self):
        found = imported_config(
            {
                "aproach": "static",
                "op_name_dict": {"/a": {"weights": {"granularity": ["per_channel"]}}},
                "recipes": {"smoothquant": True},
            },
            "conf",
        )
        assert set(found.unknown) == {
            "aproach, did you mean approach?",
            "op_name_dict./a.weights, did you mean weight?",
            "recipes.smoothquant, did you mean smooth_quant?",
        }

    def test_names_are_regular_expressions(self):
        """As run: ``odd name`` and ``odd name, escaped`` of snippets.json."""
        found = imported_config(
            {"op_name_dict": {"/x(1)": FP32, r"/y\(1\)": FP32, "/z.*": FP32, "(a+)+$": FP32, "/w.0/Conv": FP32}}, "conf"
        )
        assert found.settings.float_layers == ("/y(1)", "/w.0/Conv")
        assert [notice.split("'")[1] for notice in found.notices] == ["/x(1)", "/z.*", "(a+)+$"]

    def test_files_of_other_versions_are_refused_with_what_to_give(self, tmp_path):
        for name, text in (
            ("ptq.yaml", "quantization: {approach: post_training_static_quant, model_wise: {}}"),
            ("best_configure.yaml", "op: {conv1: {}}\nrecipe_cfgs: {}"),
            ("static.json", '{"w_granularity": "per_channel"}'),
            ("deploy.yaml", "model: {quant_format: qdq, backend: default}"),
        ):
            with pytest.raises(DataError, match="no configuration of Intel Neural Compressor 2") as caught:
                read(written(tmp_path, name, text))
            assert "PostTrainingQuantConfig" in caught.value.help, name

    def test_hostile_and_damaged(self, tmp_path):
        canary = tmp_path / "canary"
        for name, text, says in (
            ("a.yaml", f"op_type_dict: !!python/object/apply:os.system ['touch {canary}']", "YAML of plain values"),
            ("b.yaml", "op_type_dict: &a [*a]", "a value holds itself"),
            ("c.yaml", "? !!python/tuple [op_type_dict]\n: 1", "YAML of plain values"),
            ("d.json", '{"op_type_dict": {', "not JSON"),
            ("e.json", '["op_type_dict"]', "holds no configuration"),
            ("f.json", '{"about": "op_type_dict"}', "no configuration of Intel Neural Compressor 2 is found"),
            ("g.json", '{"op_type_dict": ' + '{"a":' * 100_000, "too many levels"),
        ):
            with pytest.raises((DataError, LimitError)) as caught:
                read(written(tmp_path, name, text))
            assert says in f"{caught.value} {caught.value.where}" and name in str(caught.value.where), name
        assert not canary.exists()

    def test_values_of_other_types_are_told_or_left_out(self):
        values = (None, 1, "x", [], [1], {}, {"a": None}, {"a": {"weight": 3}})
        for key in ("op_type_dict", "op_name_dict", "recipes"):
            for value in values:
                try:
                    assert imported_config({key: value, "approach": value}, "conf").settings.toolchain
                except DataError as error:
                    assert error.where, (key, value)

    def test_many_unknown_keys_take_no_longer(self):
        found = imported_config({"approach": "static", **{f"approac{n}": 1 for n in range(20_000)}}, "conf")
        assert len(found.unknown) == 50

    def test_what_is_set_is_not_advised(self):
        base = quantmedic.load_rulebase()
        for remedy, told in (("smooth-quant", {"smooth_quant": True}), ("reduce-range", {"reduce_range": True})):
            in_force = base.remedies[remedy].in_force
            assert in_force is not None
            for settings, expected in ((SettingsFacts(**told), True), (SettingsFacts(), False)):
                model = ModelFacts(settings=settings)
                view = TensorFacts() if remedy == "smooth-quant" else model
                assert decide(in_force, view, model, base)[0] is expected


class TestDiagnosis:
    @pytest.mark.source("insights-printed-tables")
    def test_console_of_2_3(self):
        found = read(DATA / "diagnosis_2.3.log")
        assert list(found.layers) == ["/head/MatMul", "/body/Conv", "/stem/Conv"]
        facts = found.layers["/body/Conv"]
        assert (facts.normalized_mse, facts.mse, facts.min, facts.max) == (3.42455e-06, None, -5.39112, 5.05098)
        assert (facts.weight_normalized_mse, facts.weight_std) == (1.75409e-06, 0.15235)
        assert found.layers["/head/MatMul"].weight_min is None
        assert found.settings.dynamic is False
        assert found.unknown == ()

    def test_console_of_2_6_lacks_the_weights(self):
        found = read(DATA / "diagnosis_2.6.log")
        assert found.layers["/stem/Conv"].normalized_mse == 1.71977e-06
        assert "the table of weights is missing" in found.notices[-1]

    @pytest.mark.source("insights-printed-tables")
    def test_tables_agree_with_the_console(self):
        found = {**read(DATA / "activations_table.csv").layers}
        assert {n: f.normalized_mse for n, f in found.items()} == {
            n: row["MSE"] for n, row in table("activations_table.csv").items()
        }
        weights = read(DATA / "weights_table.csv").layers["/stem/Conv"]
        assert (weights.weight_normalized_mse, weights.normalized_mse) == (1.5168299325051958e-06, None)
        assert (weights.weight_min, weights.weight_stored_min) == (-1.166559, -1.167916)

    @pytest.mark.source("insights-printed-tables")
    def test_every_cut_of_the_console(self, tmp_path):
        text = (DATA / "diagnosis_2.3.log").read_text()
        start = text.index("Activations summary")
        whole = read(DATA / "diagnosis_2.3.log").layers
        seen = set()
        for end in range(start, len(text), 211):
            found = read(written(tmp_path, "console.log", text[:end]))
            assert found.layers.keys() <= whole.keys()
            seen |= {notice for notice in found.notices if "ends without its last line" in notice}
        assert len(seen) == 2

    def test_lines_of_other_programs_between_the_rows(self, tmp_path):
        lines = (DATA / "diagnosis_2.3.log").read_text().splitlines()
        mixed = "\n".join(text for line in lines for text in (line, "[W:onnxruntime:, graph.cc:108] MergeShapeInfo"))
        assert (
            read(written(tmp_path, "console.txt", mixed)).layers.keys()
            == read(DATA / "diagnosis_2.3.log").layers.keys()
        )

    def test_several_tensors_of_one_operator(self, tmp_path):
        text = (DATA / "weights_table.csv").read_text()
        again = text + text.splitlines()[1].replace("1.7540929143756835e-06", "1e-9") + "\n"
        found = read(written(tmp_path, "weights_table.csv", again))
        assert found.layers["/body/Conv"].weight_normalized_mse == 1.7540929143756835e-06
        assert "with a larger error: 1, first of /body/Conv" in found.notices[0]

    def test_what_is_no_number_is_not_told(self, tmp_path):
        path = written(tmp_path, "t.csv", "OP name,MSE,Activation min,Activation max\na,nan,-inf,1\n")
        facts = read(path).layers["a"]
        assert (facts.normalized_mse, facts.min, facts.max) == (None, None, 1.0)

    def test_damaged_tables(self, tmp_path):
        head = "OP name,MSE,Activation min,Activation max\n"
        for text, says in (
            (f"{head}a,1e-6,0\n", "does not fit its heading"),
            (f"{head}a,much,0,1\n", "a number is expected"),
            ("OP name,MSE,Activation min\na,1,2\n", "the table lacks columns"),
            (f"{head}a,\0,0,1\n", "number is expected"),
        ):
            with pytest.raises(DataError, match=says) as caught:
                read(written(tmp_path, "activations_table.csv", text))
            assert "activations_table.csv" in str(caught.value.where)

    def test_log_without_tables(self, tmp_path):
        found = read(written(tmp_path, "x.log", "[INFO] *** Initialize auto tuning\n" + "[INFO] '{" * 50_000))
        assert "neither the tables" in found.notices[0]
        deep = "[INFO] 'PostTrainingQuantConfig': {\n" + "[INFO] 'a': {\n" * 2000
        assert read(written(tmp_path, "x.log", deep)).layers == {}


class _Touch:
    """What a hostile pickle runs when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


class TestTensors:
    SAVED = DATA / "inspect_saved"

    @pytest.mark.source("insights-saved-tensors")
    def test_figures_are_those_of_the_tool(self):
        found = read(self.SAVED / "fp32" / "inspect_result.pkl")
        assert found == read(self.SAVED / "quan" / "inspect_result.pkl")
        for name, row in table("activations_table.csv").items():
            assert found.layers[name].normalized_mse == pytest.approx(row["MSE"], rel=1e-4)
        for name, row in table("weights_table.csv").items():
            facts = found.layers[name]
            assert facts.weight_normalized_mse == pytest.approx(row["MSE"], rel=1e-4)
            assert facts.weight_std == pytest.approx(row["Input model standard deviation"], rel=1e-5)
        facts = found.layers["/stem/Conv"]
        assert (facts.cosine, facts.sqnr_db, facts.mse) == (None, None, None)
        assert facts.saved_sqnr_db == pytest.approx(41.94, abs=0.01)

    def test_agrees_with_unpickling(self):
        for path in self.SAVED.rglob("*.pkl"):
            with path.open("rb") as file:
                assert_equal(read_arrays(path), pickle.load(file))

    def test_arrays_of_numbers(self, tmp_path):
        for dtype in ("f2", "f4", "f8", "i1", "u1", "i8", "b1"):
            array = np.arange(24).reshape(2, 3, 4).astype(dtype)
            value = {"a": [array, array.T, array[0, 0, :0], array[0, 0, 0]], ("b", 1): (None, True, -7, 1.5, 2**40)}
            for protocol in (4, 5):
                assert_equal(read_arrays(written(tmp_path, "x.pkl", pickle.dumps(value, protocol))), value)

    def test_one_model_alone(self, tmp_path):
        shutil.copytree(self.SAVED / "fp32", tmp_path / "fp32")
        found = read(tmp_path / "fp32" / "inspect_result.pkl")
        assert found.layers["/stem/Conv"].weight_min == pytest.approx(-1.166559, rel=1e-6)
        assert found.layers["/stem/Conv"].normalized_mse is None
        assert "only the tensors of the float model are here" in found.notices[0]

    def test_normalized_figure_is_blind_to_scale_and_offset(self):
        x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        assert normalized_mse(x, 4 * x + 3) == pytest.approx(0, abs=1e-13)
        assert normalized_mse(x, np.full_like(x, np.inf)) is None

    @pytest.mark.source("insights-saved-tensors")
    def test_hostile_pickles_run_nothing(self, tmp_path):
        canary = tmp_path / "canary"
        hostile = _Touch(canary)
        for protocol in range(6):
            for value in (hostile, {"weight": {"a": {"b": hostile}}, "activation": [hostile]}):
                path = written(tmp_path, "inspect_result.pkl", pickle.dumps(value, protocol))
                with pytest.raises(DataError, match="holds more than arrays") as caught:
                    read(path)
                assert "the tables in CSV" in caught.value.help
        touch = f"touch {canary}".encode()
        for content in (
            b"cos\nsystem\n(S'" + touch + b"'\ntR.",
            b"(S'" + touch + b"'\nios\nsystem\n.",
            b"(cos\nsystem\nS'" + touch + b"'\no.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(touch)]) + touch + b"\x85\x52.",
            b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
            b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93)\x81}b.",
            b"\x80\x04\x8c\x15numpy.core.multiarray\x8c\x0c_reconstruct\x93)R\x8c\x01x\x8c\x01yb.",
            b"\x80\x04]\x94h\x00a.",
            b"\x80\x04P0\n.",
            b"\x80\x02\x82\x01.",
            b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
            b"\x80\x04N(t.",
            b"PK\x03\x04",
            b"",
        ):
            with pytest.raises(DataError) as caught:
                read(written(tmp_path, "inspect_result.pkl", content))
            assert "inspect_result.pkl" in str(caught.value.where), content
        assert not canary.exists()

    def test_bomb_of_references(self, tmp_path):
        value: Any = [0.0]
        for _ in range(7):
            value = [value] * 20
        with pytest.raises(DataError, match="nested too deeply"):
            read(written(tmp_path, "inspect_result.pkl", pickle.dumps({"weight": value})))

    @pytest.mark.nightly
    def test_keys_and_marks_that_take_for_ever(self, tmp_path):
        for content in (
            b"})" + b"\x85" * 500_000 + b"Ns.",  # its hash overflows the stack of the interpreter
            b"})" + b"".join(b"\x94h%ch%c\x86" % (i, i) for i in range(60)) + b"Ns.",  # 2^60 visits
            b"N" * 500_000 + b"(t" * 500_000 + b".",  # quadratic, where a mark is looked for from below
        ):
            with pytest.raises(DataError):
                read(written(tmp_path, "inspect_result.pkl", b"\x80\x04" + content))

    def test_one_array_under_many_names(self, tmp_path):
        array = np.zeros(1 << 20, np.float32)
        content = pickle.dumps({"weight": {str(name): {"w": array} for name in range(99)}})
        assert len(content) < 5 << 20
        with pytest.raises(DataError, match="again and again"):
            read(written(tmp_path, "inspect_result.pkl", content))

    def test_arrays_that_promise_more_than_they_hold(self, tmp_path):
        content = pickle.dumps({"weight": {"a": {"b": np.zeros((3, 4), np.float32)}}})
        # The tuple of both sides, 3 and 4.
        assert content.count(b"K\x03K\x04\x86") == 1
        path = written(tmp_path, "inspect_result.pkl", content.replace(b"K\x03K\x04\x86", b"K\xffK\xff\x86"))
        with pytest.raises(DataError, match="damaged"):
            read(path)

    def test_arrays_of_objects_and_other_byte_orders(self, tmp_path):
        for array in (np.array([{}], dtype=object), np.zeros(3, ">f4"), np.array(["text"])):
            path = written(tmp_path, "inspect_result.pkl", pickle.dumps({"weight": {"a": {"b": array}}}, 4))
            with pytest.raises(DataError, match="holds more than arrays"):
                read(path)


def assert_equal(found: Any, expected: Any) -> None:
    """The same values, arrays by their elements and types."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_equal(a, b)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(1)
    return np.concatenate([rng.normal(0, 1, (4, 3, 8, 8)).astype(np.float32) for _ in range(4)])


def shown(path: Path, samples: Any) -> dict[str, Any]:
    """What a model computes, by the name of the tensor."""
    model = onnx.load(path)
    names = [name for node in model.graph.node for name in node.output]
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": samples}), strict=True))


@pytest.fixture(scope="module")
def case(tmp_path_factory, samples):
    """The models that version 2.3 made its tables of, with its calibration samples."""
    path = tmp_path_factory.mktemp("inc") / "samples.npz"
    np.savez(path, x=samples)
    return quantmedic.collect(DATA / "float.onnx", DATA / "int8.onnx", representative=path)


@pytest.mark.thorough
class TestOwnTables:
    """The tables of the diagnosis from our facts."""

    @pytest.mark.source("insights-weight-table")
    def test_weights(self, case):
        layers = {layer.name: layer.weight for layer in quantmedic.inspect(case).facts.layers}
        for name, row in table("weights_table.csv").items():
            weight = layers[name]
            assert weight.normalized_mse == pytest.approx(row["MSE"], rel=1e-4)
            for fact, column in {
                "min": "Input model min",
                "max": "Input model max",
                "mean": "Input model mean",
                "std": "Input model standard deviation",
                "stored_min": "Optimized model min",
                "stored_max": "Optimized model max",
                "stored_mean": "Optimized model mean",
                "stored_std": "Optimized model standard deviation",
            }.items():
                assert getattr(weight, fact) == pytest.approx(row[column], rel=1e-5, abs=1e-7), (name, fact)

    @pytest.mark.source("insights-normalized-mse")
    def test_activations(self, case, samples):
        """Of every tensor that both models show, by the tool's formula in plain numpy on what ONNX Runtime computes."""
        facts = quantmedic.inspect(case).facts
        floats, deployed = (shown(DATA / name, samples) for name in ("float.onnx", "int8.onnx"))
        found = {t.float_name: t.representative for t in facts.tensors if t.representative.normalized_mse is not None}
        for name, twin in {"b": "a", "c": "c", "y": "y"}.items():  # the quantizer behind /stem/Conv holds its Relu
            x, y = floats[name].astype(np.float64), deployed[twin].astype(np.float64)
            unit = [(each - each.min()) / (each.max() - each.min()) for each in (x, y)]
            assert found[name].normalized_mse == pytest.approx(np.sum((unit[0] - unit[1]) ** 2) / x.size, rel=1e-4)
            assert found[name].accumulated.mse == pytest.approx(np.mean((y - x) ** 2), rel=1e-4), "unlike the other"

    @pytest.mark.source("insights-weight-table")
    def test_command(self, case, tmp_path):
        path = tmp_path / "a.case"
        quantmedic.save_case(case, path)
        for table_name, column in (("weights", "weight.normalized_mse"), ("activations", "accumulated.nmse")):
            result = CliRunner().invoke(cli, ["show", str(path), "--table", table_name, "--csv", "-"])
            rows = list(csv.DictReader(result.stdout.splitlines()))
            (key,) = (key for key in rows[0] if key.endswith(column))
            assert {"/stem/Conv", "/body/Conv", "/head/MatMul"} <= {row["name"] for row in rows if row[key]}


class TestSnippets:
    """Options of rules/remedies.yaml against what version 2.6 made of them (snippets.json)."""

    RUNS = json.loads((DATA / "snippets.json").read_text())
    BODY = "/body/Conv"

    def options(self, remedy: str, **names: Any) -> list[dict[str, Any]]:
        fields = {"layer": (self.BODY,), "around": (self.BODY, "/body/Add"), "types": ("Conv",), **names}
        snippets = quantmedic.load_rulebase().remedies[remedy].snippets
        mine = [each.options for each in snippets if each.toolchain == "Intel Neural Compressor"]
        return [fill(each["PostTrainingQuantConfig"], fields) for each in mine if "PostTrainingQuantConfig" in each]

    @pytest.mark.source("insights-op-name-dict", "insights-dispersed-fallback")
    def test_what_is_advised_was_run(self):
        runs: list[tuple[str, str, dict[str, Any]]] = [
            ("keep-layers-float", "float", {}),
            ("keep-operator-types-float", "float types", {}),
            ("float-first-layers", "first", {}),
            ("float-tail", "last", {}),
            ("smooth-quant", "smooth", {}),
            ("dynamic-quantization", "dynamic", {}),
            ("reduce-range", "reduced", {}),
            ("limit-activation-range", "outlier, percentile", {"layer": ("/stem/Conv",)}),
            ("widen-activation-range", "outlier, minmax", {"layer": ("/stem/Conv",)}),
        ]
        for remedy, run, names in runs:
            advised = json.loads(json.dumps(self.options(remedy, **names)))
            assert self.RUNS[run]["options"] in advised, remedy
        (advised,) = self.options("per-channel-weights")
        assert self.RUNS["per channel"]["options"]["op_name_dict"] == advised["op_name_dict"]
