"""The six causes that can be judged from outside, drawn clear and borderline, each beside a healthy twin.

The quantity that the source document of a cause speaks of is measured here and told as a multiple of the published
threshold: 2 to 4 in clear cases, 1.1 to 1.5 in borderline ones, below 1 in twins. A cause is stated where the report
lists it, as a cause or among what one absorbs; it is costly where answers change or the output is 6 dB noisier::

    python benchmarks/judgeable.py --seed 1    # 1 to 9 for tuning, without networks of the main list marked as unseen
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "QUANTMEDIC_EXACT_KERNELS": "1"}

import argparse
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from zoo.cuts import per_channel, requantize, spots, weights_of
from zoo.draw import TUNING_SEEDS, draw_network
from zoo.forms.graph import two_bit_last_layer
from zoo.forms.weights import sign_of_last_layer, ternary_last_layer
from zoo.networks import FRESH_NETWORKS, NETWORKS
from zoo.patient import Patient, healthy, standing
from zoo.quantizing import Recipe, run
from zoo.surgery import Surgeon, require, with_attributes
from zoo.tasks import TOP1

import quantmedic

GRADES = {"clear": (2.0, 4.0), "borderline": (1.1, 1.5), "twin": (0.5, 0.8)}
LOUD_DB, TRIES = 6.0, 5
RULES = quantmedic.load_rulebase()
#: The sick network, how the quantity over its threshold is measured on it, and what has to be quantized.
Drawn = tuple[Patient, Callable[[Patient, Surgeon], float], tuple[str, ...]]
#: How severe the cause is said to be, if it is stated; whether it comes first; and all causes.
Said = tuple[str, bool, str]


def values(patient: Patient, *tensors: str) -> list[np.ndarray]:
    """Float activations of the representative set."""
    return [x.astype(np.float64) for x in run(patient.network, patient.model, patient.calibration, tensors=tensors)]


def zscore(x: np.ndarray) -> float:
    """The largest distance from the mean, in standard deviations."""
    return float(np.abs(x - x.mean()).max() / max(x.std(), 1e-12))


def solve(change: Callable[[float], np.ndarray], wanted: float) -> float:
    """How large a change makes the z-score."""
    sizes = np.geomspace(1, 1e4, 4000)
    return float(sizes[bisect_left(sizes, wanted, hi=3999, key=lambda size: zscore(change(size)))])


def choose(rng: np.random.Generator, found: list[Any]) -> Any:
    return require(found, "no place")[int(rng.integers(len(found)))]


def draw_outliers(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """Two calibration samples have a value far out; or the top values of a tensor are stretched, and cut off again."""
    if rng.random() < 0.4:
        inputs, lit = patient.signals, np.zeros(patient.signals.shape, bool)
        lit.reshape(len(lit), -1)[[0, 1], rng.integers(inputs[0].size, size=2)] = True
        size = solve(lambda size: np.where(lit, inputs.mean() + size * inputs.std(), inputs), 5 * ratio)
        sick = np.where(lit, inputs.mean() + size * inputs.std(), inputs).astype(np.float32)
        return patient.with_(calibration=sick), lambda *_: zscore(sick) / 5, (patient.model.graph.input[0].name,)
    found = spots(patient)
    tensor = choose(rng, [t for t, x in zip(found, values(patient, *found), strict=True) if 2.2 < zscore(x) < 4])
    (x,), surgeon = values(patient, tensor), patient.surgeon()
    top = float(np.quantile(x, 0.999))
    slope = solve(lambda k: np.where(x > top, top + k * (x - top), x), 5 * ratio) if ratio > 1 else 1.0
    text = f"turned = Sub(top, x); far = LeakyRelu(turned, alpha={slope}); cut = Max(far, nought); back = Sub(top, cut)"
    far = surgeon.splice(tensor, text, "far", top=top, nought=0.0)["far"]
    return patient.cut(surgeon), lambda p, _: zscore(values(p, far)[0]) / 5, (far,)


def draw_negatives(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """Half of the ReLUs leak or bend, and their negative values have fewer than 8 levels; twins have a zero point."""
    kind, symmetric = str(rng.choice(["LeakyRelu", "Elu"])), bool(rng.random() < 0.5 and ratio > 1)
    found = require([t for t in patient.activations() if patient.surgeon().producer(t).op_type == "Relu"], "no ReLU")
    chosen = tuple(t for t in found if rng.random() < 0.5) or (found[0],)
    ill = patient.with_(recipe=replace(patient.recipe, activation="QInt8", symmetric=symmetric))
    for tensor in chosen:
        surgeon = ill.surgeon()
        node = surgeon.producer(tensor)
        (x,) = values(ill, node.input[0])
        share = 8 / ratio / (127 if symmetric else 255 - 8 / ratio)
        alpha = share * x.max() / max(-x.min() if kind == "LeakyRelu" else -np.expm1(x.min()), 1e-9)
        require(alpha <= 1 and (x < 0).mean() >= 0.1, "too little is negative")
        node.op_type = kind
        with_attributes(node, alpha=float(alpha))
        ill = ill.cut(surgeon, tensor)
    steps = [(x.min(), np.abs(x).max() / 127 if symmetric else np.ptp(x) / 255) for x in values(ill, *chosen)]
    return ill, lambda *_: 8 / np.median([-low / step for low, step in steps]), chosen


def draw_joint(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """A branch of a Concat in other units; or a tensor joined with, or added to, a wide copy and taken apart again."""
    surgeon, free = patient.surgeon(), set(patient.surgeon().amplifiable())
    joints = [n for n in surgeon.nodes("Concat") if free & set(n.input) and len(set(n.input)) > 1]
    if joints and rng.random() < 0.7:
        node = choose(rng, joints)
        wide, parts, joint = choose(rng, [t for t in node.input if t in free]), list(node.input), node.output[0]
        sizes = dict(zip(parts, map(np.ptp, values(patient, *parts)), strict=True))
        factor = 16 * ratio * min(size for t, size in sizes.items() if t != wide) / sizes[wide]
        surgeon.amplify(wide, np.full(surgeon.channels(wide), factor, np.float32))
    else:
        tensor = choose(rng, spots(patient))
        (x,), axis, end = values(patient, tensor), surgeon.channel_axis(tensor), surgeon.channels(tensor)
        gains = per_channel(surgeon, tensor, rng.uniform(0.7, 1, end))  # Else what is wide would lie on the sum's grid.
        given = {"width": gains * np.float32(16 * ratio * np.ptp(x) / np.ptp(x * gains))}
        text = "wide = Mul(x, width); joint = Add(x, wide); back = Sub(joint, wide)"
        if rng.random() < 0.5:
            text = f"wide = Mul(x, width); joint = Concat(x, wide, axis={axis}); cut = Slice(joint, from_, to, axis)"
            given |= {"from_": [0], "to": [end], "axis": [axis]}
        made = surgeon.splice(tensor, text, "joint", **given)
        parts, joint = [tensor, made["wide"]], made["joint"]
    widths = list(map(np.ptp, values(patient.cut(surgeon), *parts)))
    return patient.cut(surgeon, joint), lambda *_: max(widths) / max(min(widths), 1e-12) / 16, (joint,)


def draw_last_layer(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """Two codes; or three, in eight bits or in two; of twins, 15."""
    name, forms = weights_of(patient)[-1].weight, [ternary_last_layer, two_bit_last_layer]
    form = sign_of_last_layer if ratio > 2 else forms[int(rng.integers(2))]
    if ratio < 1:
        form = lambda p: p.edited(lambda p, q: requantize(p, q, [name], onnx.TensorProto.INT4))  # noqa: E731
    return form(patient), lambda _, q: 2 / np.log2(len(np.unique(q.constant(f"{name}_quantized").astype(int)))), ()


def draw_small_set(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """Fewer than 100 ordinary samples, or those of fewer than half of the classes."""
    inputs, few = patient.calibration, round(100 / ratio)
    if patient.task is not TOP1 or rng.random() < 0.5:
        few_samples = inputs[rng.permutation(len(inputs))[:few]]
        return patient.with_(calibration=few_samples), lambda *_: 100 / len(few_samples), ()
    own, there = (TOP1.answers(run(patient.network, patient.model, x)) for x in (inputs, patient.validation))
    classes = rng.permutation(np.unique(there))
    kept = inputs[np.isin(own, classes[: max(1, round(0.5 / ratio * len(classes)))])]
    require(len(classes) > 5 and len(kept) > 7, "too few classes")
    shown = np.intersect1d(TOP1.answers(run(patient.network, patient.model, kept)), classes)
    return patient.with_(calibration=kept), lambda *_: 0.5 * len(classes) / len(shown), ()


def draw_preprocessing(patient: Patient, rng: np.random.Generator, ratio: float) -> Drawn:
    """Other scales, 1.1 times of pictures and 1.5 times of other inputs, or offsets of half a deviation."""
    inputs, used, sign = patient.signals, patient.validation, int(rng.choice([-1, 1]))
    if rng.random() < 0.5:
        limit = 1.1 if patient.network.preprocessing else 1.5
        sick = (inputs * max(limit * ratio, 1.0) ** sign).astype(np.float32)
        return patient.with_(calibration=sick), lambda *_: np.exp(abs(np.log(sick.std() / used.std()))) / limit, ()
    sick = (inputs + (sign * 0.5 * ratio * used.std() if ratio > 1 else 0.0)).astype(np.float32)
    return patient.with_(calibration=sick), lambda *_: abs(sick.mean() - used.mean()) / used.std() / 0.5, ()


#: How each of the six is drawn, and the names of the causes that state it.
KINDS: dict[str, tuple[Callable[[Patient, np.random.Generator, float], Drawn], set[str]]] = {
    "outliers": (draw_outliers, {"activation-outliers", "stray-samples"}),
    "negatives": (draw_negatives, {"negative-activations", "asymmetric-data-on-symmetric-grid"}),
    "joint": (draw_joint, {"unbalanced-concatenation", "unbalanced-addition"}),
    "last-layer": (draw_last_layer, {"last-layer-bitwidth"}),
    "small-set": (draw_small_set, {"too-few-samples", "low-diversity"}),
    "preprocessing": (draw_preprocessing, {"preprocessing-mismatch"}),
}


def draw(kind: str, grade: str, patient: Patient, seed: list[int]) -> tuple[Patient, onnx.ModelProto, float]:
    """The network, its quantized model and the quantity; Inapplicable where that is not what was to be drawn."""
    (least, most), rng = GRADES[grade], np.random.default_rng([*seed, 1])
    ill, measure, tensors = KINDS[kind][0](patient, np.random.default_rng(seed), rng.uniform(least, most))
    quantized = Surgeon(ill.quantized())
    ratio = float(measure(ill, quantized)) if all(map(quantized.writer, tensors)) else 0.0
    require(ratio < 1 if grade == "twin" else 0.99 * least <= ratio <= 1.01 * most, f"{ratio:.2f} times the threshold")
    return ill, quantized.model, ratio


def ask(kind: str, ill: Patient, quantized: onnx.ModelProto) -> Said:
    """What a user gets to read."""
    name, right = ill.model.graph.input[0].name, KINDS[kind][1]
    shown, used = ({name: x, **ill.network.columns(x)} for x in (ill.calibration, ill.validation))
    told: dict[str, Any] = {"representative": shown, "validation": used}
    if ill.network.shows_labels and ill.labels is not None:
        used["labels"], told["metric"] = ill.labels, ill.task.metric
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("float.onnx", "quantized.onnx")]
        for model, path in zip((ill.model, quantized), paths, strict=True):
            onnx.save(model, str(path))
        causes = quantmedic.diagnose(*paths, rules=RULES, threads=1, progress=False, **told).causes
    rules = {rule.id for rule in RULES.rules if rule.cause in right}
    hidden = ["absorbed" for c in causes for each in c.absorbs if each.rule in rules]
    words = ", ".join(f"{c.cause} {c.severity}/{c.harm}" for c in causes) or "nothing"
    stated = [*(c.severity for c in causes if c.cause in right), *hidden, ""]
    return stated[0], bool(causes) and causes[0].cause in right, words


def make(kind: str, grade: str, seed: list[int], tries: int) -> tuple[str, bool, Said, Said]:
    """One case in the first of so many networks where it is costly, or else in the first one, and its twin."""
    rng, found = np.random.default_rng(seed), {}
    known = [n for n in NETWORKS.values() if seed[0] not in TUNING_SEEDS or not n.unseen]
    networks = [n for each in (known, *map(dict.values, FRESH_NETWORKS.values())) for n in each if n.available]
    for i in rng.permutation(len(networks)):
        recipe = Recipe(per_channel=bool(rng.random() < 0.7), activation=str(rng.choice(["QInt8", "QUInt8"])))
        patient = healthy(draw_network(networks[i], int(rng.integers(2**31))), recipe)
        try:
            pair = [draw(kind, each, patient, seed) for each in (grade, "twin")]
            case, twin = (standing(*each[:2]) for each in pair)
        except Exception:  # No place here: the next network.
            continue
        lost, times = twin.sqnr_db - case.sqnr_db, " and ".join(f"{each[2]:.2f}" for each in pair)
        costs = lost > LOUD_DB or (case.hurts and not twin.hurts and lost > 1)
        words = f"{networks[i].name}: {times} times, {case.sqnr_db:.1f} and {twin.sqnr_db:.1f} dB{', costly' * costs}"
        found.setdefault(costs, (words, costs, pair))
        if costs or (tries := tries - 1) == 0:
            break
    words, costs, pair = found[max(require(found, "no network has a place"))]
    said, other = (ask(kind, *each[:2]) for each in pair)
    words += f": {said[0] or 'MISSED'}" + (", first" if said[1] else f"; said: {said[2]}")
    return words + (f"; TWIN {other[0]}, said: {other[2]}" if other[0] else ""), costs, said, other


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60, help="over all six causes [default: 60]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, help="one cause alone")
    asked = parser.parse_args()
    cells: dict[str, list[tuple[str, bool, Said, Said]]] = {}
    for number in range(asked.cases):
        kind, grade = list(KINDS)[number % 6], ("clear", "borderline")[number // 6 % 2]
        if asked.only in (None, kind):
            case = make(kind, grade, [asked.seed, number], 1 if number // 12 % 2 else TRIES)
            cells.setdefault(f"{kind:14s}{grade:12s}", []).append(case)
            print(f"{number} {kind} {grade}, {case[0]}", flush=True)
    print(f"{'':26s}cases  stated  first  twin quiet  costly, stated  severities")
    for name, cases in cells.items():
        stated, costly = ([bool(said[0]) for _, costs, said, _ in cases if costs or each] for each in (True, False))
        first, quiet = sum(said[1] for _, _, said, _ in cases), sum(not twin[0] for *_, twin in cases)
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(said[0] for _, _, said, _ in cases if said[0]).items())
        print(f"{name}{len(cases):5d}{sum(stated):8d}{first:7d}{quiet:12d}{sum(costly):10d} of {len(costly)}  {kinds}")


if __name__ == "__main__":
    main()
