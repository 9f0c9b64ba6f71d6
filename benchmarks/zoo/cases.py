"""The cases of the zoo: which there are, how one is built, and whether it hurts and heals."""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .draw import TUNING_SEEDS, case_seed, draw_network, draw_recipes, draw_strength
from .fault import CONTROLS, FAULTS, Fault
from .networks import FRESH_NETWORKS, NETWORKS, REAL_NETWORKS, Network, known_network
from .patient import NORMAL, Patient, healthy, standing
from .protocol.row import LOUD_DB
from .quantizing import Recipe, Standing
from .surgery import Inapplicable
from .tasks import TAIL

#: Bump to rebuild cached cases.
RECIPE_VERSION = 5

#: Beside a case: labels that the zoo knows and the expert is not told.
HIDDEN = "hidden.npz"

#: How much worse a graded fault is made, in turn, until it hurts.
STRENGTHS = (1.0, 3.0, 10.0)

#: Thresholds may be tuned on the kinds of the set ``tuning`` on these networks, and on nothing else.
TUNING_NETWORKS = frozenset({"demo", "mobile", "vit"})

#: Pairs of kinds that do not touch the same thing.
PAIRS = (
    ("not-normalized", "two-bit-last-layer"),
    ("one-image-repeated", "wide-branch"),
    ("uniform-noise", "one-heavy-tail"),
    ("broken-samples", "two-bit-last-layer"),
    ("raw-pixels", "unfolded-batch-norm"),
    ("outlier-channel", "two-bit-last-layer"),
    ("wide-addend", "four-bit-weights"),
    ("night-images", "coarse-output"),
    ("class-mask", "four-bit-weights"),
    ("boxes-and-scores", "one-wide-channel"),
    ("cancelled-offset", "two-bit-last-layer"),
    ("narrow-range", "two-bit-last-layer"),
    ("heavy-tails", "coarse-output"),
    ("wide-branch", "two-bit-last-layer"),
    ("blank-images", "wide-addend"),
    ("normalized-twice", "heavy-tails"),
)

#: The same of sets that tuning never sees.
UNSEEN_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "l": (
        ("stained-paler", "told-beside-the-loudest"),
        ("told-in-kilometres", "levels-cut-off"),
        ("three-fields-in-turn", "one-loud-channel-each"),
        ("fixes-far-away", "head-in-octaves"),
        ("ranges-of-slower-trips", "level-of-all-places"),
        ("ends-of-the-usual-channel", "biases-added-by-each-part"),
        ("six-of-a-quiet-hour", "rectified-in-few-levels"),
    ),
    "m": (
        ("under-the-net", "one-half-much-louder"),
        ("slow-hands", "gates-less-steep"),
        ("two-letters-again-and-again", "scales-rounded-after-the-codes"),
        ("four-buffers-in-turn", "biases-for-one-scale"),
        ("ranges-from-under-the-net", "pixels-until-the-joint"),
        ("percent-too-few", "adapter-merged-twice"),
        ("moved-by-the-wind", "framed-by-the-least-number"),
    ),
    "n": (
        ("heard-from-afar", "joined-in-larger-units"),
        ("floor-of-another-release", "last-layer-in-few-levels"),
        ("five-before-breakfast", "stem-in-few-levels"),
        ("first-firings-alone", "sums-in-a-narrow-buffer"),
        ("wire-burnt-through", "shares-sharpened"),
        ("flown-in-the-evening", "level-moved-across-a-sum"),
        ("divided-without-a-rest", "biases-in-half-a-byte"),
    ),
    "o": (
        ("four-of-the-faintest-hearts", "one-seat-much-louder"),
        ("one-frame-in-all-buffers", "one-seat-much-louder"),
        ("hum-of-other-mains", "one-seat-much-louder"),
        ("told-at-half-the-gain", "one-seat-much-louder"),
        ("four-of-the-faintest-hearts", "answers-for-any-heart"),
        ("one-frame-in-all-buffers", "slopes-of-another-count"),
        ("farther-below", "folded-rows-first"),
        ("farther-below", "told-above-the-other-half"),
        ("laid-on-grey", "folded-rows-first"),
        ("farther-below", "middles-without-their-shift"),
        ("farther-below", "corners-told-on-the-whole-map"),
        ("smoothed-by-the-telephone", "signs-kept-for-wings"),
        ("by-the-light-of-the-trap", "told-above-the-other-half"),
        ("one-frame-in-all-buffers", "channels-drawn-apart"),
    ),
}

#: Put into every network whatever the seed: what is sound must look sound in each.
EVERYWHERE = (
    "as-it-came",
    "as-shipped",
    "as-agreed",
    "as-commissioned",
    "as-surveyed",
)


@dataclass(frozen=True)
class Spec:
    """One case: a network with one fault, with two, or with none."""

    network: str
    kinds: tuple[str, ...] = ()
    control: str = ""
    seed: int | None = None

    @property
    def name(self) -> str:
        return f"{self.network}/{self.control or '+'.join(self.kinds)}"

    @classmethod
    def by_name(cls, name: str, seed: int | None) -> "Spec":
        """The case of a name."""
        network, _, what = name.partition("/")
        return (
            cls(network, control=what, seed=seed)
            if what in CONTROLS
            else cls(network, tuple(what.split("+")), seed=seed)
        )

    @property
    def base(self) -> Network:
        """The network, with the samples that the seed draws."""
        network = known_network(self.network)
        return network if self.seed is None else draw_network(network, case_seed(self.seed, self.name))

    @property
    def group(self) -> str:
        return "control" if self.control else "double" if len(self.kinds) == 2 else "single"

    @property
    def family(self) -> str:
        return "control" if self.control else FAULTS[self.kinds[0]].family if len(self.kinds) == 1 else "double"

    @property
    def tuning(self) -> bool:
        rows = [CONTROLS[self.control]] if self.control else [FAULTS[kind] for kind in self.kinds]
        seen = all(row.set == "tuning" for row in rows)
        return self.network in TUNING_NETWORKS and not known_network(self.network).unseen and seen

    @property
    def expected(self) -> tuple[tuple[str, ...], ...]:
        return tuple(FAULTS[kind].expected for kind in self.kinds)

    @property
    def also(self) -> tuple[tuple[str, ...], ...]:
        """Causes that are true of each fault, but not the right answer."""
        return tuple(FAULTS[kind].also for kind in self.kinds)


def all_specs(seed: int | None = None) -> Iterator[Spec]:
    """Faults, pairs of faults and controls in the networks of the zoo."""
    kinds, controls = (_names(rows, "tuning", "reporting") for rows in (FAULTS, CONTROLS))
    networks = _networks(NETWORKS, seed)
    yield from _in_each(networks, kinds, (), seed)
    for network in networks:
        yield from (Spec(network, pair, seed=seed) for pair in PAIRS)
    yield from _in_each(networks, (), controls, seed)


def real_specs(seed: int | None = None) -> Iterator[Spec]:
    """Faults in networks that others trained, and the fault of quantizing them with the toolchain's defaults."""
    kinds, controls = (_names(rows, "tuning", "reporting", "real") for rows in (FAULTS, CONTROLS))
    yield from _in_each(_networks(REAL_NETWORKS, seed), kinds, controls, seed)


def _in_each(
    networks: Iterable[str], kinds: Iterable[str], controls: Iterable[str], seed: int | None
) -> Iterator[Spec]:
    """All faults in each network, then all controls."""
    for network in networks:
        yield from (Spec(network, (kind,), seed=seed) for kind in kinds)
    for network in networks:
        yield from (Spec(network, control=name, seed=seed) for name in controls)


def _names(rows: dict[str, Fault], *sets: str) -> list[str]:
    return [name for name, row in rows.items() if row.set in sets]


def _networks(listed: dict[str, Network], seed: int | None) -> list[str]:
    """Their names; a seed for tuning leaves out those that tuning never sees."""
    return [name for name, network in listed.items() if seed not in TUNING_SEEDS or not network.unseen]


def unseen_specs(which: str, seed: int | None = None) -> Iterator[Spec]:
    """Faults and controls of one of the sets that tuning never sees.

    The third set is put into networks alone that tuning never sees either; the older ones, into every network. Of the
    later ones, a seed draws the networks of each.
    """
    kinds, controls = _names(FAULTS, which), _names(CONTROLS, which)
    older = NETWORKS | REAL_NETWORKS
    if which in ("a", "b"):
        yield from _in_each(older, kinds, controls, seed)
    elif which == "c":
        networks = FRESH_NETWORKS["c"] | {k: n for k, n in older.items() if n.unseen}
        yield from _in_each(networks, kinds, controls, seed)
    else:
        yield from _pairs_of(which, seed)
        for name in (*kinds, *controls):
            yield from (Spec.by_name(f"{network}/{name}", seed) for network in drawn_networks(which, name, seed))


def _pairs_of(which: str, seed: int | None) -> Iterator[Spec]:
    """Pairs of a set, each in one of the networks where both faults have a place."""
    for pair in UNSEEN_PAIRS.get(which, ()):
        yield Spec(_draw_one(_fitting(which, *pair), "+".join(pair), seed), pair, seed=seed)


def drawn_networks(which: str, name: str, seed: int | None) -> list[str]:
    """Into which networks of its set a seed puts a fault or control, among those where it has a place."""
    fits = _fitting(which, name)
    return fits if name in EVERYWHERE else [_draw_one(fits, name, seed)]


def _fitting(which: str, *names: str) -> list[str]:
    """Networks of a set where each of these faults or controls has a place."""
    rows = [(FAULTS | CONTROLS)[name] for name in names]
    return [n for n in FRESH_NETWORKS[which] if all(not row.networks or n in row.networks for row in rows)]


def _draw_one(networks: list[str], name: str, seed: int | None) -> str:
    rng = np.random.default_rng([seed or 0, zlib.crc32(name.encode())])
    return networks[int(rng.integers(len(networks)))]


@dataclass(frozen=True)
class Built:
    """A case on disk.

    Attributes:
        status: ``fault``, ``control``, ``harmless`` where metric and answers bear a fault, or why a case is left out:
            inapplicable, unhealed, harmed, broken.
        reason: In words.
        before: The quantized model against the float model.
        healed: The same after the remedy.
        metric: Task metric that quantmedic is given; None for its default.
        strength: Of a graded fault.
        recipe: Settings that the seed drew, as far as they differ from the normal ones.
        places: Float nodes where a local fault sits.
    """

    spec: Spec
    folder: Path
    status: str
    reason: str = ""
    before: Standing | None = None
    healed: Standing | None = None
    metric: str | None = None
    strength: float = 1.0
    recipe: str = ""
    places: tuple[str, ...] = ()

    @property
    def told_metric(self) -> dict[str, str]:
        """The argument that names the task metric, where there are labels and it is not the default."""
        return {"metric": self.metric} if self.metric and self.spec.base.shows_labels else {}

    @property
    def usable(self) -> bool:
        """Whether it is asked of the expert: what costs nothing in this case too, since its harm may be assumed."""
        return self.status in ("fault", "control") or (self.status == "harmless" and self.before is not None)

    @property
    def is_harmless(self) -> bool:
        """A fault that neither hurts nor makes the output much noisier than healing leaves it."""
        return self.status == "harmless" and (self.gain_db or 0.0) < LOUD_DB

    @property
    def recovery_db(self) -> float | None:
        """Output SQNR after healing minus before, all outputs pooled."""
        return self.healed.sqnr_db - self.before.sqnr_db if self.healed and self.before else None

    @property
    def is_hidden(self) -> bool:
        """Boxes hide the scores beside them, in the same output or in another: only the worst column tells."""
        hidden = (self.recovery_db or 0.0) <= 0 < (self.recovery_worst_db or 0.0)
        return self.metric == TAIL.metric or hidden

    @property
    def gain_db(self) -> float | None:
        """What healing recovers: pooled, but in the worst column where boxes hide the scores beside them."""
        return self.recovery_worst_db if self.is_hidden else self.recovery_db

    @property
    def recovery_worst_db(self) -> float | None:
        """The same for the worst column."""
        return self.healed.worst_column_db - self.before.worst_column_db if self.healed and self.before else None


def build(spec: Spec, root: Path) -> Built:
    """The case on disk, made if it is not there yet."""
    place = root / spec.network if spec.seed is None else root / f"seed-{spec.seed}" / spec.network
    folder = place / (f"control-{spec.control}" if spec.control else "+".join(spec.kinds))
    record = folder / "case.json"
    if record.is_file():
        stored = json.loads(record.read_text())
        if stored.pop("version") == RECIPE_VERSION:
            standings = {k: Standing(**v) if (v := stored.pop(k)) else None for k in ("before", "healed")}
            places = tuple(stored.pop("places"))
            return Built(spec, folder, places=places, **stored, **standings)
    folder.mkdir(parents=True, exist_ok=True)
    made = _made(spec, folder, root)
    content: dict[str, Any] = {k: v for k, v in asdict(made).items() if k not in ("spec", "folder")}
    record.write_text(json.dumps({"version": RECIPE_VERSION, **content}, indent=1))
    return made


def _made(spec: Spec, folder: Path, root: Path) -> Built:
    if not spec.base.available:
        return Built(spec, folder, "inapplicable", "the network is not installed")
    if spec.group == "double":
        for kind in spec.kinds:
            alone = build(replace(spec, kinds=(kind,)), root)
            if not alone.usable or alone.is_harmless:
                return Built(spec, folder, alone.status, f"{kind} alone: {alone.reason}")
    try:
        return _graded(spec, folder, root) if spec.seed is None else _drawn(spec, folder, root)
    except Inapplicable as error:
        return Built(spec, folder, "inapplicable", str(error))
    except Exception as error:
        if any(text in str(error) for text in ("tensor(uint4)", "tensor(int2)", "output_dtype")):
            return Built(spec, folder, "inapplicable", "onnxruntime has no kernel for so few bits")
        return Built(spec, folder, "broken", f"{type(error).__name__}: {error}"[:300])


def _graded(spec: Spec, folder: Path, root: Path) -> Built:
    """A case of a single fault that can be made worse is made worse until it hurts; doubles take what hurt alone."""
    sound = _normal(spec.network)
    if len(spec.kinds) == 2:
        return _judged(spec, folder, _strengths_alone(spec, root), sound)
    graded = len(spec.kinds) == 1 and FAULTS[spec.kinds[0]].graded
    for strength in STRENGTHS if graded else STRENGTHS[:1]:
        built = _judged(spec, folder, (strength,), sound)
        if built.status != "harmless":
            break
    return built


def _strengths_alone(spec: Spec, root: Path) -> tuple[float, ...]:
    return tuple(build(replace(spec, kinds=(kind,)), root).strength for kind in spec.kinds)


def _drawn(spec: Spec, folder: Path, root: Path) -> Built:
    """A case as its seed draws it, with the first settings that the network bears and that suit the fault."""
    assert spec.seed is not None
    seed = case_seed(spec.seed, spec.name)
    graded = len(spec.kinds) == 1 and FAULTS[spec.kinds[0]].graded
    alone = (draw_strength(seed) if graded else 1.0,)
    strengths = _strengths_alone(spec, root) if len(spec.kinds) == 2 else alone
    for recipe in draw_recipes(seed):
        try:
            sound = _Sound(healthy(spec.base, recipe))
            if sound.standing.hurts:
                continue
            return replace(_judged(spec, folder, strengths, sound), recipe=_words_of(recipe))
        except Exception:
            if recipe == NORMAL:
                raise
    return Built(spec, folder, "unhealed", "the network hurts with the normal settings")


def _words_of(recipe: Recipe) -> str:
    """What differs from the normal settings."""
    changed = {k: v for k, v in asdict(recipe).items() if v != getattr(NORMAL, k)}
    return ", ".join(f"{k}={v}" for k, v in changed.items())


class _Sound:
    """A healthy patient, and how it does."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient

    @cached_property
    def standing(self) -> Standing:
        return standing(self.patient)


@cache
def _normal(network: str) -> _Sound:
    return _Sound(healthy(Spec(network).base))


def _judged(spec: Spec, folder: Path, strengths: tuple[float, ...], sound: _Sound) -> Built:
    patient = sound.patient
    for kind, strength in zip(spec.kinds, strengths, strict=False):
        patient = FAULTS[kind].apply(patient.with_(strength=strength))
    if spec.control:
        patient = CONTROLS[spec.control].apply(patient)
    quantized = patient.quantized()
    before = _beside(sound, standing(patient, quantized))
    _write(patient, quantized, folder)
    common = {"before": before, "metric": patient.task.metric, "strength": strengths[0], "places": patient.places}
    if spec.control:
        return Built(spec, folder, "harmed" if before.hurts else "control", _words(before), **common)
    healed = _healed(spec, sound, patient)
    words = f"{_words(before)}; healed: {_words(healed)}"
    if all(not FAULTS[kind].harms for kind in spec.kinds):
        return Built(spec, folder, "fault", words, healed=healed, **common)
    if not before.hurts:
        return Built(spec, folder, "harmless", words, healed=healed, **common)
    better = max(healed.sqnr_db - before.sqnr_db, healed.worst_column_db - before.worst_column_db) > 1
    heals = not healed.hurts and (better or spec.group == "double")
    return Built(spec, folder, "fault" if heals else "unhealed", words, healed=healed, **common)


def _words(standing: Standing) -> str:
    words = f"{standing.sqnr_db:.1f} dB"
    if standing.agreement is not None:
        words += f", agreement {standing.agreement:.2f}"
    if standing.float_score is not None:
        words += f", score {standing.float_score:.3f} -> {standing.score:.3f}"
    return words


def _healed(spec: Spec, sound: _Sound, ill: Patient) -> Standing:
    """After the remedy: the fault's own for a single one, the sound quantization otherwise."""
    heal = FAULTS[spec.kinds[0]].heal if len(spec.kinds) == 1 else None
    return _beside(sound, standing(heal(ill))) if heal else _beside(sound, sound.standing)


def _beside(sound: _Sound, found: Standing) -> Standing:
    """Where only noise tells, with what the sound quantization has of it."""
    return found if found.agreement is not None else replace(found, sound_db=sound.standing.sqnr_db)


def _write(patient: Patient, quantized: onnx.ModelProto, folder: Path) -> None:
    float_model = patient.shown_float or patient.model
    onnx.save(float_model, str(folder / "float.onnx"))
    onnx.save(quantized, str(folder / "quantized.onnx"))
    name = float_model.graph.input[0].name
    shown = patient.calibration if patient.shown is None else patient.shown
    network = patient.network
    np.savez(folder / "representative.npz", **{name: shown, **network.columns(shown)})
    validation = {name: patient.validation, **network.columns(patient.validation)}
    labels = {} if patient.labels is None else {"labels": patient.labels}
    np.savez(folder / "validation.npz", **validation, **(labels if network.shows_labels else {}))
    np.savez(folder / HIDDEN, **({} if network.shows_labels else labels))
    for option, arrays in patient.options.items():
        np.savez(folder / f"{option}.npz", **arrays)
