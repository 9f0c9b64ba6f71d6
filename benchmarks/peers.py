"""quantmedic beside what else compares a float and a quantized network layer by layer: on the same pairs, in one run.

``plain``
    both models on all samples, one by one: the floor.
``collect``
    ``quantmedic collect --no-attribution``: everything is measured, nothing is simulated; peers do a part of that.
``diagnose``
    ``quantmedic diagnose``: causes, simulated and executed remedies, the report.
``peer``
    of ONNX pairs onnxruntime's ``qdq_loss_debug`` (activations of both models, their errors, those of the weights), of
    LiteRT pairs ai-edge-quantizer's ``compare_model`` (mean squared error of every tensor).

Contenders run in turn, each in a process of its own with one thread, start included. Costs are processor seconds of the
process and its children, and the largest resident memory of one of them; the least of all rounds counts. A peer that
wants more than ``LIMIT`` bytes fails, for the machine has other users.

How to run, from the repository root::

    python benchmarks/peers.py litert
    python benchmarks/peers.py onnx --packages /tmp/pip     # where published networks are: see cost_networks.py
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from guard import ALONE, cost_of

ENDINGS = {"onnx": ".onnx", "litert": ".tflite"}
ONNX_SAMPLES = 12
LIMIT = 12 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", help="onnx, litert; both by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--packages", type=Path, default=Path("/tmp/pip"), help="published networks, for ONNX pairs")
    parser.add_argument("--child", nargs=3, metavar=("CONTENDER", "FRAMEWORK", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--build", nargs=2, metavar=("FRAMEWORK", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        framework, folder = arguments.build
        build(framework, Path(folder), arguments.packages)
        return
    if arguments.child:
        contender, framework, folder = arguments.child
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        globals()[f"run_{contender}_{framework}"](Path(folder))
        return
    os.environ.update(ALONE)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    print("| pair, samples | plain | collect | diagnose | peer | collect / peer, time and memory |")
    print("|---|--:|--:|--:|--:|--:|")
    for framework in arguments.frameworks or ENDINGS:
        with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
            # Another process builds: memory that this one took would count as that of its children.
            given = ["--build", framework, made, "--packages", str(arguments.packages)]
            subprocess.run([sys.executable, __file__, *given], check=True, capture_output=True)
            for folder in sorted(Path(made).iterdir()):
                compare(folder.name, pair_commands(framework, folder), arguments.rounds)


def build(framework: str, root: Path, packages: Path) -> None:
    """Write both models and samples of all pairs of a framework, a folder each."""
    if framework == "onnx":
        import cost_networks

        for name in cost_networks.PUBLISHED:
            cost_networks.built(name, root, packages)
    else:
        import litert_networks

        for name, network in litert_networks.NETWORKS.items():
            litert_networks.build(network, root / f"{name}, {network.samples}")


def pair_commands(framework: str, folder: Path) -> dict[str, list[str]]:
    """What to run on two files and their samples, by contender."""
    models = [str(folder / f"{name}{ENDINGS[framework]}") for name in ("float", "int8")]
    given = [*models, "--validation", str(folder / "val.npz"), "--threads", "1"]
    given += ["--samples", str(ONNX_SAMPLES)] if framework == "onnx" else []
    quantmedic = [sys.executable, "-m", "quantmedic"]
    return {
        "plain": child("plain", framework, folder),
        "collect": [*quantmedic, "collect", *given, "--no-attribution", "-o", str(folder / "peers.case")],
        "diagnose": [*quantmedic, "diagnose", *given, "-o", str(folder / "peers-report")],
        "peer": child("peer", framework, folder),
    }


def child(contender: str, framework: str, folder: Path) -> list[str]:
    return [sys.executable, __file__, "--child", contender, framework, str(folder)]


def compare(title: str, commands: Mapping[str, Sequence[str]], rounds: int) -> None:
    """Print one row."""
    found = []
    for i in range(rounds):
        print(f"{title}: round {i + 1} of {rounds}", file=sys.stderr, flush=True)
        for case in Path(commands["plain"][-1]).glob("peers.case"):
            case.unlink()
        found.append({name: cost_of(command) for name, command in commands.items()})
    cells, best = [], {}
    for name in commands:
        costs = [each for each in (costs[name] for costs in found) if each is not None]
        best[name] = [min(each[k] for each in costs) for k in (0, 1)] if len(costs) == rounds else None
        cells.append(f"{best[name][0]:.1f} s, {best[name][1]:.0f} MB" if best[name] else "fails")
    ours, theirs = best["collect"], best["peer"]
    ratios = f"{ours[0] / theirs[0]:.2f}, {ours[1] / theirs[1]:.2f}" if ours and theirs else ""
    print(f"| {title} | {' | '.join(cells)} | {ratios} |", flush=True)


def feeds(folder: Path) -> list[dict[str, Any]]:
    """Samples one by one, of ONNX pairs the first ``ONNX_SAMPLES``."""
    import numpy as np

    with np.load(folder / "val.npz") as stored:
        data = dict(stored)
    count = ONNX_SAMPLES if (folder / "float.onnx").exists() else len(next(iter(data.values())))
    return [{name: x[i : i + 1] for name, x in data.items()} for i in range(count)]


def run_plain_onnx(folder: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [ort.InferenceSession(str(folder / f"{name}.onnx"), options) for name in ("float", "int8")]
    for feed in feeds(folder):
        for session in sessions:
            session.run(None, feed)


def run_peer_onnx(folder: Path) -> None:
    from onnxruntime.quantization import qdq_loss_debug
    from zoo.feeds import Feeds

    files = [str(folder / f"{name}.onnx") for name in ("float", "int8")]
    with tempfile.TemporaryDirectory() as place:
        found = []
        for number, file in enumerate(files):
            augmented = str(Path(place) / f"{number}.onnx")
            qdq_loss_debug.modify_model_output_intermediate_tensors(file, augmented)
            found.append(qdq_loss_debug.collect_activations(augmented, Feeds(feeds(folder))))
        matched = qdq_loss_debug.create_activation_matching(found[1], found[0])
        # It fails on tensors without axes.
        whole = {name: own for name, own in matched.items() if all(x.ndim for xs in own.values() for x in xs)}
        qdq_loss_debug.compute_activation_error(whole)
        weights = qdq_loss_debug.create_weight_matching(*files)
        qdq_loss_debug.compute_weight_error(
            {name: own for name, own in weights.items() if all(x.ndim for x in own.values())}
        )


def run_plain_litert(folder: Path) -> None:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    for name in ("float", "int8"):
        interpreter = Interpreter(str(folder / f"{name}.tflite"), num_threads=1)
        interpreter.allocate_tensors()
        fed, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
        scale, zero = fed["quantization"]
        for (x,) in (feed.values() for feed in feeds(folder)):
            codes = np.clip(np.rint(x / scale) + zero, -128, 127) if fed["dtype"] == np.int8 else x
            interpreter.set_tensor(fed["index"], codes.astype(fed["dtype"]))
            interpreter.invoke()
            interpreter.get_tensor(given["index"])


def run_peer_litert(folder: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import model_validator

    files = [folder / f"{name}.tflite" for name in ("float", "int8")]
    key, signature = next(iter(Interpreter(str(files[0])).get_signature_list().items()))
    data = {key: [dict(zip(signature["inputs"], feed.values(), strict=True)) for feed in feeds(folder)]}
    model_validator.compare_model(*(path.read_bytes() for path in files), data, num_threads=1)


if __name__ == "__main__":
    main()
