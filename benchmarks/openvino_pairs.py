"""OpenVINO IRs: how many layers of public networks match, and whether a fault is named as in the ONNX model.

How to run, from the repository root, with OpenVINO installed::

    python benchmarks/openvino_pairs.py match NETWORK.onnx …     # quantized by NNCF here; needs nncf
    python benchmarks/openvino_pairs.py twins --keep /tmp/zoo    # faults of the zoo, as ONNX and as IR

``match`` quantizes each network on random data, which costs its accuracy and not its graph. It prints how many layers
have a counterpart, how many tensors are measured, and whether the outputs are those of the untouched model to the bit,
of the pair as it is run and of the copy that shows the tensors; open sides of inputs are given by ``--sides``.

``twins`` builds cases of the zoo (``fault_zoo.py``, without a seed), converts both ONNX files to IRs, has both pairs
diagnosed with the same data, and compares the first cause. A quantizer that OpenVINO cannot express leaves a case out.
What else a case comes with, such as outputs of a device, is given to both forms. ``--shift`` draws other cases, and
``--folded`` has OpenVINO fold factors into the weights of the float model alone, as it does where both are converted.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QUANTMEDIC_EXACT_KERNELS", "1")  # The same figures on every host.

import argparse
import fnmatch
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import onnx
import openvino
from zoo.cases import Built, Spec, all_specs, build
from zoo.verdict import further_inputs

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.exposing import are_same
from quantmedic.collectors.from_openvino.feed import arrays_of
from quantmedic.collectors.from_openvino.file import telling_line
from quantmedic.collectors.from_openvino.models import OpenVINOModels, open_models
from quantmedic.engine.errors import QuantmedicError

#: Faults that are drawn where nothing is asked: of convolutions and a transformer, of data, ranges, weights and graphs.
DRAWN = "demo/*,mobile/*,vit/*"
#: Length of an open side of an input that is not the first one.
SIDE = 16
CALIBRATION = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    matching = commands.add_parser("match")
    matching.add_argument("networks", nargs="+", type=Path)
    matching.add_argument("--sides", type=int, default=SIDE, help="length of open sides of inputs")
    twins = commands.add_parser("twins")
    twins.add_argument("--only", default=DRAWN, help="patterns of cases, separated by commas")
    twins.add_argument("--sample", type=int, default=24, help="so many of them, drawn evenly over all")
    twins.add_argument("--shift", type=int, default=0, help="take the cases so many places further on in the list")
    twins.add_argument("--folded", action="store_true", help="let OpenVINO fold factors into the float model alone")
    twins.add_argument("--keep", type=Path, help="folder that keeps the cases")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if asked.command == "match":
            print_matches(asked.networks, asked.sides, Path(scratch))
        else:
            specs = drawn_specs(asked.only, asked.sample, asked.shift)
            convert = openvino.convert_model if asked.folded else converted
            print_twins(specs, asked.keep or Path(scratch), convert)


def print_matches(networks: Sequence[Path], side: int, folder: Path) -> None:
    print("network                       layers  matched  tensors  measured  outputs  copy")
    for number, path in enumerate(networks):
        try:
            row = matching_row(*quantized_pair(path, side, folder / str(number)))
        except (RuntimeError, QuantmedicError) as error:
            row = f"left out: {telling_line(error)[:90]}"
        print(f"{path.stem:30s}{row}", flush=True)


def quantized_pair(path: Path, side: int, folder: Path) -> tuple[OpenVINOModels, dict[str, np.ndarray]]:
    """An ONNX network as an IR, what NNCF makes of it, and a sample of random values."""
    import nncf

    folder.mkdir()
    model = openvino.convert_model(path)
    sizes = {port.any_name: list(sides_of(port, side)) for port in model.inputs}
    model.reshape({name: list(size) for name, size in sizes.items()})
    rng = np.random.default_rng(0)
    kinds = {port.any_name: port.element_type.to_dtype() for port in model.inputs}
    items = [{name: random_values(rng, kinds[name], size) for name, size in sizes.items()} for _ in range(CALIBRATION)]
    paths = folder / "float.xml", folder / "int8.xml"
    openvino.save_model(model, paths[0], compress_to_fp16=False)
    read = openvino.Core().read_model(paths[0])
    made = nncf.quantize(read, nncf.Dataset(items), subset_size=CALIBRATION)
    openvino.save_model(made, paths[1], compress_to_fp16=False)
    return open_models(*paths), items[0]


def sides_of(port: Any, side: int) -> Iterator[int]:
    """The sides of an input; of open ones the first counts samples, and others are ``side``."""
    for place, length in enumerate(port.partial_shape):
        yield length.get_length() if length.is_static else side if place else 1


def random_values(rng: np.random.Generator, kind: np.dtype[Any], size: Sequence[int]) -> np.ndarray:
    if np.issubdtype(kind, np.integer):
        return rng.integers(0, 256, size).astype(kind)
    return rng.normal(size=size).astype(kind)


def matching_row(models: OpenVINOModels, item: dict[str, np.ndarray]) -> str:
    """Counts, and whether outputs are those of the file as an application runs it."""
    batch = Batch(item, None)
    view = models.view(dict(enumerate(models.pairs)), batch, 1)
    hints = {"INFERENCE_PRECISION_HINT": "f32"}
    plain = openvino.Core().compile_model(str(models.quantized.path), "CPU", hints)(list(item.values()))
    own = [np.array(plain[k]) for k in range(len(plain))]
    found = view.read(batch).outputs[1]
    same = are_same([own[j].astype(np.float32) for _, j in models.match.outputs], found)
    (exposed,) = models.quantized.exposed.values()
    copy = models.sessions.session(models.quantized, 1, exposed.same).run(arrays_of(batch, models.quantized))[0]
    words = ["equal" if each else "DIFFER" for each in (same, are_same(own, copy))]
    counts = (len(models.quantized.operators), len(models.match.operators), len(models.pairs), len(view.taps))
    return "".join(f"{count:7d} " for count in counts) + "  " + "    ".join(words)


def drawn_specs(patterns: str, sample: int, shift: int) -> list[Spec]:
    """Cases of the zoo evenly over all that fit a pattern, each ``shift`` places behind where it would be drawn."""
    specs = [s for s in all_specs() if s.kinds and any(fnmatch.fnmatch(s.name, p) for p in patterns.split(","))]
    places = np.linspace(0, len(specs) - 1, min(sample, len(specs))).round().astype(int)
    return [specs[place] for place in dict.fromkeys(((places + shift) % len(specs)).tolist())]


def print_twins(specs: Sequence[Spec], root: Path, convert: Callable[[Path], openvino.Model]) -> None:
    """The first causes of both forms, case by case, and how often they are the same."""
    same = total = 0
    for spec in specs:
        built = build(spec, root)
        if built.status != "fault":
            print(f"{spec.name:40s} left out: {built.status} {built.reason[:60]}", flush=True)
            continue
        try:
            names = [first_cause(built, *paths) for paths in forms_of(built, convert)]
        except (RuntimeError, QuantmedicError) as error:
            print(f"{spec.name:40s} left out: {telling_line(error)[:80]}", flush=True)
            continue
        same, total = same + (names[0] == names[1]), total + 1
        print(f"{spec.name:40s} {names[0]:32s} {'' if names[0] == names[1] else names[1]}", flush=True)
    print(f"the same first cause in {same} of {total} faults")


def forms_of(built: Built, convert: Callable[[Path], openvino.Model]) -> list[tuple[Path, Path]]:
    """The pair as ONNX files, and the same two converted to IRs."""
    onnx_pair = built.folder / "float.onnx", built.folder / "quantized.onnx"
    found = []
    for path in onnx_pair:
        target = built.folder / f"{path.stem}.xml"
        openvino.save_model(convert(path), target, compress_to_fp16=False)
        found.append(target)
    return [onnx_pair, (found[0], found[1])]


def converted(path: Path) -> openvino.Model:
    """An ONNX model as ``openvino.convert_model`` reads it, with factors and offsets of channels where they are.

    The conversion folds products and sums with constants and batch norms into the weights before and behind them, in
    the float model alone: between the same operators of the quantized model are quantizers. NNCF quantizes what was
    converted, so that both IRs of a user's pair have them, or neither; the ONNX files are that pair only if both have
    them. A tensor that is returned is not folded away: such are returned while the model is converted.
    """
    kept = onnx.load(path)
    names = [name for name in scaled_tensors(kept.graph) if name not in {each.name for each in kept.graph.output}]
    kept.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / path.name
        onnx.save(kept, source)
        model = openvino.convert_model(source)
    for result in model.get_results()[len(model.get_results()) - len(names) :]:
        model.remove_result(result)
    return model


def scaled_tensors(graph: onnx.GraphProto) -> list[str]:
    """What batch norms, and products and sums with constants, codes or not, read and write."""
    constants = {each.name for each in graph.initializer}
    for node in graph.node:
        if node.op_type in ("Constant", "DequantizeLinear") and constants.issuperset(node.input):
            constants.update(node.output)
    inputs = {each.name for each in graph.input}
    found = [
        node
        for node in graph.node
        if node.op_type == "BatchNormalization"
        or (node.op_type in ("Mul", "Div", "Add", "Sub") and sum(name in constants for name in node.input) == 1)
    ]
    names = (name for node in found for name in (*node.input, *node.output[:1]))
    return [name for name in dict.fromkeys(names) if name not in constants | inputs]


def first_cause(built: Built, float_path: Path, quantized_path: Path) -> str:
    found = quantmedic.diagnose(
        float_path,
        quantized_path,
        representative=built.folder / "representative.npz",
        validation=built.folder / "validation.npz",
        prove=False,
        threads=1,
        **built.told_metric,
        **further_inputs(built.folder),
    )
    return found.causes[0].cause if found.causes else f"none ({found.verdict})"


if __name__ == "__main__":
    main()
