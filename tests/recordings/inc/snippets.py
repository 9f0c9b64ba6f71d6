"""What options of version 2.6 do to the network of record.py: ``python snippets.py`` writes snippets.json.

``nodes`` holds of every node that computes what its first two inputs are: codes with their granularity, or float.
``scales`` holds the step of the first one, ``stored`` a hash of all constants.
"""

import hashlib
import json
import logging
import re
from typing import Any

import onnx
from neural_compressor import PostTrainingQuantConfig, quantization, set_workspace
from onnx import numpy_helper
from record import Loader, network

FLOAT = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}
BODY = "/body/Conv"
ODD = "/body+1/Conv(2)"
PER_TENSOR = {"Conv": {"weight": {"granularity": ["per_tensor"]}}}
#: Options by what they are to show.
RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "float": {"op_name_dict": {BODY: FLOAT, "/body/Add": FLOAT}},
    "float, activation only": {"op_name_dict": {BODY: {"activation": {"dtype": ["fp32"]}}}},
    "float, weight only": {"op_name_dict": {BODY: {"weight": {"dtype": ["fp32"]}}}},
    "float, no such name": {"op_name_dict": {"/no/such": FLOAT}},
    "float types": {"op_type_dict": {"Conv": FLOAT}},
    "per tensor": {"op_type_dict": PER_TENSOR},
    "per channel": {"op_type_dict": PER_TENSOR, "op_name_dict": {BODY: {"weight": {"granularity": ["per_channel"]}}}},
    "key weights": {"op_name_dict": {BODY: {"weights": {"granularity": ["per_channel"]}}}},
    "first": {"recipes": {"first_conv_or_matmul_quantization": False}},
    "last": {"recipes": {"last_conv_or_matmul_quantization": False}},
    "smooth": {"recipes": {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.5}}},
    "dynamic": {"approach": "dynamic"},
    "reduced": {"reduce_range": True},
    "corrected": {"recipes": {"fast_bias_correction": True, "weight_correction": True}},
    "symmetric": {"op_name_dict": {BODY: {"activation": {"scheme": ["sym"]}}}},
    "odd name": {"op_name_dict": {ODD: FLOAT}},
    "odd name, escaped": {"op_name_dict": {re.escape(ODD): FLOAT}},
}
#: The same with 512 samples of which one holds an outlier.
OUTLIER_RUNS: dict[str, dict[str, Any]] = {
    "outlier": {},
    "outlier, minmax": {"op_name_dict": {"/stem/Conv": {"activation": {"algorithm": ["minmax"]}}}},
    "outlier, percentile": {"op_name_dict": {"/stem/Conv": {"activation": {"algorithm": ["percentile"]}}}},
    "outlier, kl": {"op_name_dict": {"/stem/Conv": {"activation": {"algorithm": ["kl"]}}}},
    "outlier, kl everywhere": {"op_name_dict": {".*": {"activation": {"algorithm": ["kl"]}}}},
}


def quantized(options: dict[str, Any], loader: Loader, samples: int) -> dict[str, Any]:
    """What came of the options."""
    model = network()
    for node in model.graph.node:
        if "odd" in options and node.name == BODY:
            node.name = ODD
    given = {key: value for key, value in options.items() if key != "odd"}
    record: dict[str, Any] = {"options": json.loads(json.dumps(given))}
    try:
        conf = PostTrainingQuantConfig(quant_format="QDQ", calibration_sampling_size=[samples], **given)
        result = quantization.fit(model, conf, calib_dataloader=loader)
    except BaseException as error:
        return record | {"raises": type(error).__name__}
    return record | described(result.model)


def described(model: onnx.ModelProto) -> dict[str, Any]:
    """What every node of a quantized model reads."""
    writers = {name: node for node in model.graph.node for name in node.output}
    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    nodes, scales = {}, {}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        name = node.name.removesuffix("_quant")
        nodes[name] = [_read(each, writers, values) for each in node.input[:2]]
        writer = writers.get(node.input[0])
        if writer is not None and writer.op_type == "DequantizeLinear":
            scales[name] = float(f"{values[writer.input[1]].max():.6g}")
    stored = b"".join(values[name].tobytes() for name in sorted(values))
    return {"nodes": nodes, "scales": scales, "stored": hashlib.sha256(stored).hexdigest()[:16]}


def _read(name: str, writers: dict[str, Any], values: dict[str, Any]) -> str:
    writer = writers.get(name)
    if writer is None or writer.op_type != "DequantizeLinear":
        return str(values[name].dtype) if name in values else "float32"
    granularity = "per_channel" if values[writer.input[1]].size > 1 else "per_tensor"
    return f"{values[writer.input[2]].dtype} {granularity}"


def main() -> None:
    """All runs as JSON."""
    logging.getLogger("neural_compressor").setLevel(logging.CRITICAL)
    set_workspace("nc_workspace")
    found = {}
    for name, options in RUNS.items():
        found[name] = quantized(options | ({"odd": True} if "odd" in name else {}), Loader(), 16)
    for name, options in OUTLIER_RUNS.items():
        found[name] = quantized(options, Loader(8, 64, 80.0), 512)
    with open("snippets.json", "w", encoding="utf-8") as file:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in found.items())
        file.write(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
