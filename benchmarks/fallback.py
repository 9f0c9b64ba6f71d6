"""How many evaluations the smallest fallback set takes, and how small it is, against the ways that people know.

    python benchmarks/fallback.py                       all networks and budgets, each searched with three seeds
    python benchmarks/fallback.py --networks vit csp --budgets 3 6 --samples 64

An evaluation is one pass over the same samples with one set of layers in float; a pass in which every batch tries
another set counts as one too. A budget is a rise of the output's SQNR over int8 in dB. Greedy backward elimination
starts with everything in float and puts back what harms least as long as the budget holds: its sets are the reference,
at n²/2 evaluations. One at a time: one evaluation per layer, that layer alone quantized, and bisection along that
ranking. The last columns are what is promised: evaluations of at most max(n/5, 2·size + log2 n), and sets of at most
1.2 times the reference. csp and vit are trained, the others have random weights; csp has fewer than 50 layers.
"""

import argparse
import logging
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, quantize_static

from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.from_onnx.models import open_models
from quantmedic.collectors.measure.collect import collect
from quantmedic.collectors.measure.options import Options
from quantmedic.engine.contract.fallback import Goal
from quantmedic.engine.diagnosis.fallback import Units, one_at_a_time, smallest_set
from quantmedic.trials.fallback import SETS, FallbackTrial

Array = NDArray[Any]
Evaluate = Callable[[Units], float]
ZOO = Path(__file__).parent / "zoo" / "networks"
BUDGETS = (0.5, 1.0, 2.0, 3.0, 6.0, 10.0, 15.0)
SEEDS = (0, 1, 2)
CALIBRATION = 16
#: Batches of an evaluation that needs no random sets.
FEW = 4
#: Every so many pixels of the images are kept, so that greedy elimination ends.
COARSE = 4


def _images(count: int) -> Array:
    return np.stack([image[:, ::COARSE, ::COARSE] for image in networks.samples("resnet50", count)])


def _zoo_images(divisor: float, offset: float, count: int) -> Array:
    from quantmedic.demo import patient

    _, options = patient(healthy=True)
    with np.load(options["validation"]) as arrays:
        return np.asarray(arrays["image"][:count], np.float32) / divisor - offset


def _tokens(count: int) -> Array:
    return np.stack(list(networks.samples("encoder", count)))


NETWORKS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[int], Array]]] = {
    "csp": (partial(onnx.load, str(ZOO / "csp.onnx")), partial(_zoo_images, 255.0, 0.0)),
    "vit": (partial(onnx.load, str(ZOO / "vit.onnx")), partial(_zoo_images, 127.5, 1.0)),
    "mobilenet_v2": (partial(networks.mobilenet_v2, 224 // COARSE), _images),
    "resnet50/4": (partial(networks.resnet50, 224 // COARSE, slim=4), _images),
    "encoder": (partial(networks.encoder, 2, 64), _tokens),
}


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, samples: Array) -> None:
        self._feeds = iter([{name: sample[np.newaxis]} for sample in samples])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def trials_of(network: str, samples: int, folder: Path) -> tuple[FallbackTrial, FallbackTrial]:
    """The network quantized by onnxruntime, and the samples to search on; then in large batches, which run faster."""
    build, data_of = NETWORKS[network]
    model, data = build(), data_of(CALIBRATION + 2 * samples)
    name = model.graph.input[0].name
    paths = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, str(paths[0]))
    quantize_static(str(paths[0]), str(paths[1]), _Reader(name, data[:CALIBRATION]), per_channel=True)
    models = open_models(*paths)
    dataset = open_dataset({name: data[CALIBRATION:]}, models.input_specs, role="validation")
    case = collect(models, {"validation": dataset}, options=Options(samples=16), version="benchmark")
    goal = Goal(kind="sqnr", limit=math.inf)
    options: dict[str, Any] = {"metric": None, "samples": samples, "threads": 1, "seed": 0}
    small, large = (FallbackTrial(models, dataset, case, goal, **options, sets=sets) for sets in (SETS, FEW))
    return small, large


def greedy_path(count: int, noise: Evaluate) -> list[tuple[int, float]]:
    """Sizes of the sets of greedy backward elimination and their noise, from all in float to none."""
    kept, path = frozenset(range(count)), []
    path.append((count, noise(kept)))
    while kept:
        kept = min((kept - {unit} for unit in sorted(kept)), key=noise)
        path.append((len(kept), noise(kept)))
    return path


def greedy_size(path: Sequence[tuple[int, float]], limit: float) -> int:
    """The last set before the budget breaks."""
    sizes = [size for size, _ in path]
    broken = next((i for i, (_, noise) in enumerate(path) if noise > limit), len(path))
    return sizes[broken - 1]


def ranked_size(order: Sequence[int], noise: Evaluate, limit: float) -> int:
    """Bisection along a ranking."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if noise(frozenset(order[:middle])) <= limit else (middle + 1, high)
    return low


def compare(network: str, budgets: Sequence[float], samples: int) -> None:
    """One row per budget and seed."""
    with tempfile.TemporaryDirectory() as folder:
        trial, fast = trials_of(network, samples, Path(folder))
        count = len(trial.groups)
        memory: dict[Units, float] = {}

        def noise(units: Units) -> float:
            if units not in memory:
                memory[units] = float(fast.evaluate(units).noise.sum())
            return memory[units]

        full, every = noise(frozenset()), frozenset(range(count))
        ranking = sorted(every, key=lambda unit: -noise(every - {unit}))
        path = greedy_path(count, noise)
        for budget in budgets:
            limit = full / 10 ** (budget / 10)
            reference, usual = greedy_size(path, limit), ranked_size(ranking, noise, limit)
            trial.goal = Goal(kind="sqnr", limit=trial.sqnr_db(full) + budget)
            for seed in SEEDS:
                found = smallest_set(count, trial.evaluate, trial.probe, seed=seed)
                size = len(found.best) if found.best is not None else count
                allowed = max(count / 5, 2 * size + math.log2(count))
                kept = ("yes" if found.evaluations <= allowed else "NO", "yes" if size <= 1.2 * reference else "NO")
                print(
                    f"{network:<13} {count:>4} {budget:>7g} {seed:>5} {size:>6} {found.evaluations:>6} {allowed:>8.1f}"
                    f" {usual:>11} {one_at_a_time(count):>6} {reference:>8} {kept[0]:>12} {kept[1]:>6}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), metavar="DB")
    parser.add_argument("--samples", type=int, default=128)
    given = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    print(f"{'':<13} {'':>4} {'budget':>7} {'':>5} {'---- search ---------':>22} {'one at a time':>18} {'greedy':>8}")
    print(
        f"{'network':<13} {'n':>4} {'dB':>7} {'seed':>5} {'size':>6} {'evals':>6} {'allowed':>8} {'size':>11}"
        f" {'evals':>6} {'size':>8} {'evals kept':>12} {'size':>6}"
    )
    for network in given.networks:
        compare(network, given.budgets, given.samples)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
