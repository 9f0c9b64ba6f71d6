"""Logs of quantizations that failed: those in data/logs were printed by the real tools (see the README there)."""

import random
import re
from pathlib import Path

import pytest
from builders.recordings import RECORDINGS

import quantmedic
from quantmedic.collectors.toolchain_files.toolchain_log import LogFacts, read_log_facts
from quantmedic.engine.case.facts import FailureFacts

BASE = quantmedic.load_rulebase()
LOGS = RECORDINGS / "logs"
ORT, AEQ, INC, MCT = "onnxruntime", "ai-edge-quantizer", "Intel Neural Compressor", "Sony MCT"
TF = "TensorFlow converter"
FED = "calibration-input-mismatch"
#: What each recorded log tells: kind, subject, toolchain.
RECORDED: dict[str, tuple[str, str | None, str | None]] = {
    "aeq-no-model": ("unreadable-model", None, AEQ),
    "aeq-no-recipe": ("setting-not-accepted", "recipe", AEQ),
    "aeq-no-statistics": ("no-calibration-data", None, AEQ),
    "aeq-operator-not-in-policy": ("operator-not-supported", "SOFTMAX", AEQ),
    "aeq-wrong-input-name": (FED, "conv2d_input", AEQ),
    "aeq-wrong-shape": (FED, None, AEQ),
    "aeq-wrong-signature": (FED, "nosig", AEQ),
    "inc-goal-missed": ("accuracy-goal-missed", None, INC),
    "inc-no-data": ("no-calibration-data", None, INC),
    "inc-no-model": ("unreadable-model", None, INC),
    "inc-wrong-key": ("setting-not-accepted", "weights", INC),
    "inc-wrong-shape": (FED, "x", ORT),
    "mct-activation-target": ("target-unreachable", None, MCT),
    "mct-operations-target": ("target-unreachable", None, MCT),
    "mct-two-targets": ("target-unreachable", None, MCT),
    "mct-weights-target": ("target-unreachable", None, MCT),
    "onnx-over-2-gb": ("model-over-2-gb", None, None),
    "ort-bias-matrix": ("bias-adjustment", None, ORT),
    "ort-broken-image": ("calibration-file-broken", None, None),
    "ort-data-format": (
        "setting-not-accepted",
        "activation_type=QuantType.QInt8, weight_type=QuantType.QUInt8",
        ORT,
    ),
    "ort-invalid-perm": ("invalid-graph", "Transpose", ORT),
    "ort-missing-image": ("calibration-file-missing", "calib/0001.jpg", None),
    "ort-newer-ir": ("unreadable-model", "99", ORT),
    "ort-no-data": ("no-calibration-data", None, ORT),
    "ort-no-model": ("unreadable-model", "none.onnx", ORT),
    "ort-no-reader": ("no-calibration-data", None, ORT),
    "ort-override-of-no-tensor": ("setting-not-accepted", "nothere", ORT),
    "ort-per-channel-opset-11": ("per-channel-opset", None, ORT),
    "ort-reader-gives-lists": (FED, None, ORT),
    "ort-repeated-names": ("repeated-names", "same", ORT),
    "ort-smoothquant-without-inc": ("missing-package", "neural-compressor", ORT),
    "ort-softmax-without-range": ("tensor-without-range", "s", ORT),
    "ort-symbolic-shapes": ("shape-inference-failed", None, ORT),
    "ort-truncated-image": ("calibration-file-broken", None, None),
    "ort-unable-to-allocate": ("out-of-memory", None, None),
    "ort-unknown-input-name": (FED, "image", ORT),
    "ort-unknown-operator": ("operator-not-supported", "custom:MyOp", ORT),
    "ort-without-sympy": ("missing-package", "sympy", ORT),
    "ort-wrong-input-name": (FED, "x", ORT),
    "ort-wrong-rank": (FED, "x", ORT),
    "ort-wrong-shape": (FED, "x", ORT),
    "ort-wrong-type": (FED, "tensor(uint8)", ORT),
    "tf-missing-image": ("calibration-file-missing", "calib/img7.jpg", TF),
    "tf-no-representative": ("no-calibration-data", None, TF),
    "tf-unknown-operator": ("operator-not-supported", "tf.Erfinv", TF),
    "tf-wrong-shape": (FED, "tensor 0", TF),
}
#: Lines that were not provoked here: the words of documentation, sources and issue trackers.
DOCUMENTED = {
    "AssertionError: No solution was found during solving the LP problem": "target-unreachable",
    "ValueError: The model cannot be quantized to meet the specified target resource utilization weights_memory "
    "with the value 12000.0.": "target-unreachable",
    "INFO:nncf:The algorithm could not achieve the required accuracy drop.": "accuracy-goal-missed",
    "Killed": "out-of-memory",
    "/usr/bin/quantize.sh: line 12:  4711 Killed                  python quantize.py": "out-of-memory",
    "terminate called after throwing an instance of 'std::bad_alloc'": "out-of-memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "out-of-memory",
    "onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented: [ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not "
    "find an implementation for ConvInteger(10) node with name 'conv'": "operator-not-supported",
    "Some ops are not supported by the native TFLite runtime, you can enable TF kernels fallback": (
        "operator-not-supported"
    ),
    "error: failed to legalize operation 'tf.Einsum' that was explicitly marked illegal": "operator-not-supported",
    "RuntimeError: Quantization not yet supported for op: 'CUSTOM'.": "operator-not-supported",
    "[E] In node 12 (importFallbackPluginImporter): No importer registered for op: GridSampler": (
        "operator-not-supported"
    ),
    "ERROR: The operator 'GridSample' is not supported on this march": "operator-not-supported",
    "[ONNXRuntimeError] : 1 : FAIL : Node (mm) Op (MatMul) [ShapeInferenceError] Incompatible dimensions": (
        "invalid-graph"
    ),
    "[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model.": "invalid-graph",
    "onnx.onnx_cpp2py_export.shape_inference.InferenceError: [TypeInferenceError] data type mismatch": "invalid-graph",
    "RuntimeError: Unable to guess tensor type for tensor 'y', running shape inference may help": (
        "shape-inference-failed"
    ),
    "ModuleNotFoundError: No module named 'onnxruntime_extensions'": "missing-package",
    "PIL.UnidentifiedImageError: cannot identify image file 'calib/0002.jpg'": "calibration-file-broken",
    "tensorflow.python.framework.errors_impl.InvalidArgumentError: Unknown image file format": (
        "calibration-file-broken"
    ),
    "[ WARN:0@0.1] global loadsave.cpp:268 findDecoder imread_('calib/0001.jpg'): can't open/read file": None,
    "cv2.error: OpenCV(4.9.0) color.cpp:196: error: (-215:Assertion failed) !_src.empty() in function 'cvtColor'": (
        "calibration-file-missing"
    ),
    "FileNotFoundError: [Errno 2] No such file or directory: 'models/float.onnx'": "unreadable-model",
    "google.protobuf.message.EncodeError: message exceeds maximum protobuf size of 2GB: 2304000512": "model-over-2-gb",
    "ValueError: The model cannot be quantized to meet the specified resource utilization for the following targets: "
    "{'activation': np.float64(3072.0)}": "target-unreachable",
    "AttributeError: 'NoneType' object has no attribute 'total_mem_restricted'": "target-of-another-call",
    "AssertionError: scale issue": "range-not-finite",
    "ValueError: Only QuantFormat.QDQ supports 16-bit quantization types.": "setting-not-accepted",
    "TypeError: quantize_static() got an unexpected keyword argument 'perchannel'": "setting-not-accepted",
    "ValueError: The inference_input_type and inference_output_type must be tf.float32.": "setting-not-accepted",
    "ValueError: Unsupported algorithm key: minmax.": "setting-not-accepted",
    "OSError: SavedModel file does not exist at: nothere/{saved_model.pbtxt|saved_model.pb}": "unreadable-model",
    "[11/20/2026-10:00:00] [E] Error[4]: Network must have at least one output": None,
    "schema.SchemaError: Key 'activation' error": "setting-not-accepted",
    "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model failed:Protobuf parsing failed.": "unreadable-model",
}


def read(tmp_path: Path, text: str | bytes) -> LogFacts:
    path = tmp_path / "tool.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log_facts([path], BASE.logs)


def traceback(last: str, *frames: str) -> str:
    places = "".join(f'  File "{frame}.py", line 1, in {frame}\n    {frame}()\n' for frame in frames or ("main",))
    return f"Traceback (most recent call last):\n{places}{last}\n"


def test_recorded_failures() -> None:
    found = {path.stem: read_log_facts([path], BASE.logs).failure for path in LOGS.glob("*.log")}
    assert {name: (own.kind, own.subject, own.toolchain) for name, own in found.items()} == RECORDED
    untold = [name for name, own in found.items() if not own.failed or own.line not in (own.lines or ())]
    assert not untold


def test_documented_words(tmp_path: Path) -> None:
    kinds = {line: read(tmp_path, f"calibrating\n{line}\n").failure.kind for line in DOCUMENTED}
    assert kinds == DOCUMENTED


def test_every_kind_is_known_to_a_rule_and_every_rule_to_a_log() -> None:
    said = {str(pattern.sets["kind"]) for pattern in BASE.logs if "kind" in pattern.sets}
    asked = {c.value for rule in BASE.rules for c in rule.conditions() if c.fact == "failure.kind" and c.op == "is"}
    assert said == asked


def test_recorded_logs_tell_targets_and_settings() -> None:
    one, two, three = (
        read_log_facts([LOGS / f"{name}.log"], BASE.logs)
        for name in ("mct-weights-target", "mct-two-targets", "ort-bias-matrix")
    )
    assert (one.search.target, one.search.target_value, one.search.several_targets) == ("weights", 10.0, None)
    assert (two.search.target, two.search.several_targets) == ("weights", True)
    assert three.settings.per_channel_weights is True


def test_a_log_without_an_error(tmp_path: Path) -> None:
    quiet = "calibrating 32 samples\nmean error: 0.3, max error 0.5\n0 errors\nWARNING: MemoryError is near\n"
    quiet += "E0000 00:00:17 cuda_executor.cc:1] failed call to cuInit: UNKNOWN ERROR (303)\n"
    found = read(tmp_path, quiet).failure
    assert (found.failed, found.kind, found.line) == (False, None, None)
    assert read_log_facts([], BASE.logs).failure.failed is None


WRITTEN = (
    "quantized model written to int8.onnx",
    "INFO Saved quantized model",
    "Specified timeout or max trials is reached! Found a quantized model which meet accuracy goal. Exit.",
    "saved out/int8.onnx, top-1 accuracy 71.2 %",
)
NOT_WRITTEN = ("quantized model could not be saved", "wrote float.onnx", "error: 0.25 mean absolute")


def test_what_stands_before_a_model_that_was_written_was_overcome(tmp_path: Path) -> None:
    caught = traceback("ModuleNotFoundError: No module named 'cupy'")
    for line in WRITTEN:
        assert read(tmp_path, caught + line).failure == FailureFacts(failed=False), line
        assert read(tmp_path, caught + line + "\nMemoryError\n").failure.kind == "out-of-memory", line
    for line in NOT_WRITTEN:
        assert read(tmp_path, f"MemoryError\n{line}\n").failure.lines == ("MemoryError",), line


def test_a_traceback_behind_what_runners_put_in_front_of_lines(tmp_path: Path) -> None:
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'calib/1.jpg'"
    text = traceback(words, "get_next")
    stamps = ("2026-01-01T00:00:00Z ", "2026-01-01T00:00:00.1234567Z ")
    for prefix in (*stamps, "app_1  | ", "    | ", "10:00:01,123 [main] "):
        for logged in ("".join(f"{prefix}{line}\n" for line in text.splitlines()), prefix + text):
            found = read(tmp_path, logged + "tail of the job\n").failure
            told = (found.kind, found.subject, found.line)
            assert told == ("calibration-file-missing", "calib/1.jpg", words), prefix


def test_of_a_long_line_the_words_that_tell_are_kept(tmp_path: Path) -> None:
    line = f"x.InvalidGraph: [ONNXRuntimeError] {'node ' * 200}Unrecognized attribute: axis for operator QuantizeLinear"
    found = read(tmp_path, traceback(line)).failure
    assert found.kind == "per-channel-opset" and found.line is not None and len(found.line) <= 400
    assert found.line.startswith("x.InvalidGraph") and "axis for operator QuantizeLinear" in found.line


def test_an_unknown_failure_is_quoted_and_not_named(tmp_path: Path) -> None:
    found = read(tmp_path, traceback("mytool.Broken: the flux is not aligned")).failure
    assert (found.failed, found.kind) == (True, None)
    assert found.line == "mytool.Broken: the flux is not aligned"


#: Words that Python says of many things, and the frames of the traceback that tell what they are about.
WHERE_THEY_AROSE = [
    (
        "ValueError: The truth value of an array with more than one element is ambiguous.",
        ("quantize_model", "_adjust_weight_scale_for_int32_bias"),
        "bias-adjustment",
    ),
    ("StopIteration", ("representative_data_gen",), "no-calibration-data"),
    ("TypeError: 'generator' object is not callable", ("lite/python/optimize/calibrator",), "no-calibration-data"),
    ("RuntimeError: Node number 0 (CONV_2D) failed to prepare.", ("lite/python/optimize/calibrator",), FED),
    ("AttributeError: 'list' object has no attribute 'items'", ("ai_edge_quantizer/calibrator",), FED),
    (
        "ValueError: Cannot set tensor: Got value of type FLOAT64 but expected type FLOAT32 for input 0, name: x",
        ("tensorflow/lite/python/interpreter",),
        FED,
    ),
    ("ValueError: supplied range of [nan, nan] is not finite", ("collect_value",), "range-not-finite"),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'settings.json'",
        ("get_next",),
        "calibration-file-missing",
    ),
]


def test_words_of_python_count_only_where_a_tool_said_them(tmp_path: Path) -> None:
    """Provoked with MCT 2.6.1, TensorFlow 2.21, ai-edge-quantizer 0.10.0 and onnxruntime 1.31."""
    for words, frames, kind in WHERE_THEY_AROSE:
        assert read(tmp_path, traceback(words, *frames)).failure.kind == kind, words
        assert read(tmp_path, traceback(words, "my_script")).failure.kind is None, words


def test_the_last_error_counts(tmp_path: Path) -> None:
    first, second = traceback("ValueError: No data is collected."), traceback("MemoryError", "collect_data")
    assert read(tmp_path, first + "again\n" + second).failure.kind == "out-of-memory"
    assert read(tmp_path, first + "again\n" + traceback("mytool.Broken: later")).failure.kind is None


def test_an_error_that_led_to_an_unknown_one_is_the_failure(tmp_path: Path) -> None:
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = traceback("MemoryError") + chained + traceback("RuntimeError: step 3 gave up")
    found = read(tmp_path, text + "[ERROR] quantization failed\n").failure
    assert (found.kind, found.line) == ("out-of-memory", "MemoryError")
    assert found.lines == ("MemoryError", "RuntimeError: step 3 gave up", "[ERROR] quantization failed")


def test_what_a_library_printed_right_before_the_traceback_is_the_failure(tmp_path: Path) -> None:
    printed, later = "error: 'tf.Erfinv' op is neither a custom op nor a flex op\n", traceback("mytool.Broken: gave up")
    assert read(tmp_path, printed + "  details\n" + later).failure.kind == "operator-not-supported"
    assert read(tmp_path, printed + "  another step\n" * 50 + later).failure.kind is None


def test_a_line_of_source_in_a_traceback_is_no_failure(tmp_path: Path) -> None:
    source = '  File "a.py", line 1, in f\n    raise MemoryError("Unable to allocate 1 GiB")\n'
    text = f"Traceback (most recent call last):\n{source}mytool.Broken: something else\n"
    assert read(tmp_path, text).failure.kind is None


def test_other_encodings_and_colours(tmp_path: Path) -> None:
    text = traceback("MemoryError")
    assert read(tmp_path, text.encode("utf-16")).failure.kind == "out-of-memory"
    assert read(tmp_path, b"\x1b[31mMemoryError\x1b[0m\n").failure.line == "MemoryError"
    assert read(tmp_path, b"\xef\xbb\xbfKilled\n").failure.line == "Killed"
    assert read(tmp_path, b"\xff\xfe\xff broken text\r\nMemoryError\r\n").failure.failed is not None


def test_no_pattern_takes_long_on_any_line() -> None:
    """Bounded repeats that do not nest cost a bounded number of steps at each place of a line."""
    expressions = [text for own in BASE.logs for text in (own.pattern, own.within or "")]
    bare = {text: re.sub(r"\[[^\]]*\]", "c", re.sub(r"\\.", "c", text)) for text in expressions}
    endless = [text for text, own in bare.items() if re.search(r"[*+]|\{\d*,\}", own)]
    assert not endless, "write {0,200} instead of *, {1,200} instead of +"
    assert not [text for text, own in bare.items() if re.search(r"\{\d+,\d+\}\)\{", own)], "a repeat within a repeat"


@pytest.mark.thorough
def test_hostile_lines(tmp_path: Path) -> None:
    """Whatever a log holds is text, of bounded length, and costs no more than its bytes."""
    words = [p.pattern for p in BASE.logs] + ["::error::x", "<script>alert(1)</script>", "\x00"[:0], "{7*7}", "‮"]
    chance = random.Random(0)
    lines = [chance.choice(words) * chance.randrange(1, 60) for _ in range(300)]
    lines += ["Error: " * 3000, "'" * 9000, "a.b." * 4000 + "Error:", "Traceback (most recent call last):" * 100]
    found = read(tmp_path, "\n".join(lines)).failure
    assert len(found.lines or ()) <= 5
    assert all(len(line) <= 400 for line in found.lines or ())
