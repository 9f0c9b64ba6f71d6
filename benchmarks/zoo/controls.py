"""Healthy controls: quantizations of all kinds that cost nothing, some of which look dangerous."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .fault import Unseen
from .faults_activations import with_scaled_ranges
from .patient import Patient
from .surgery import Inapplicable, Surgeon

CONTROLS: dict[str, Callable[[Patient], Patient]] = {}
#: Those of a set that tuning never sees.
UNSEEN_CONTROLS: dict[Unseen, dict[str, Callable[[Patient], Patient]]] = {}


def _recipe(name: str, **changes):
    CONTROLS[name] = lambda patient: patient.with_(recipe=replace(patient.recipe, **changes))


CONTROLS["per-channel"] = lambda patient: patient
_recipe("per-tensor", per_channel=False)
_recipe("unsigned", activation="QUInt8")
_recipe("unsigned-weights", activation="QUInt8", weight="QUInt8", per_channel=False)
_recipe("percentile", method="Percentile", percentile=99.999)
_recipe("entropy", method="Entropy")
_recipe("symmetric", symmetric=True)
_recipe("qoperator", qoperator=True)
_recipe("qoperator-per-tensor", qoperator=True, per_channel=False, activation="QUInt8")
_recipe("sixteen-bit", activation="QUInt16")
_recipe("sixteen-bit-signed", activation="QInt16", symmetric=True)
_recipe("reduced-range", extra={"reduce_range": True})
_recipe("no-bias-quantization", extra={"QuantizeBias": False})
_recipe("kept-activations", extra={"QDQKeepRemovableActivations": True})


def control(name: str, unseen: Unseen = ""):
    def register(make: Callable[[Patient], Patient]) -> Callable[[Patient], Patient]:
        (UNSEEN_CONTROLS.setdefault(unseen, {}) if unseen else CONTROLS)[name] = make
        return make

    return register


@control("large-scales")
def large_scales(patient: Patient) -> Patient:
    """All channels of some tensors a thousand times as large: the numbers are huge, the shapes are the same."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(_apart(surgeon), 0.2, 0.5, 0.8):
        surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 1000.0, np.float32))
    return patient.with_(model=surgeon.model)


def _apart(surgeon: Surgeon) -> list[str]:
    """Tensors that no Concat joins with others."""
    followed = ("Concat", "MaxPool", "Relu", "Clip")
    return [t for t in surgeon.amplifiable() if all(n.op_type not in followed for n in surgeon.consumers(t))]


@control("small-scales")
def small_scales(patient: Patient) -> Patient:
    """The same a thousand times as small."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(_apart(surgeon), 0.3, 0.6):
        surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 1e-3, np.float32))
    return patient.with_(model=surgeon.model)


@control("harmless-outliers")
def harmless_outliers(patient: Patient) -> Patient:
    """A channel four times as wide as the others."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(surgeon.amplifiable(), 0.4, 0.8):
        scale = np.ones(surgeon.channels(tensor), np.float32)
        scale[0] = 4
        surgeon.amplify(tensor, scale)
    return patient.with_(model=surgeon.model)


@control("slightly-wide-ranges")
def slightly_wide(patient: Patient) -> Patient:
    """Some ranges half as wide again as needed."""
    return with_scaled_ranges(patient, patient.pick(patient.activations(), 0.3, 0.7), 1.5)


@control("brightened-images")
def brightened(patient: Patient) -> Patient:
    """A representative set a little brighter than the validation set: the domain differs, the ranges hold."""
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    pixels = network.pixels("calibration")[0][: len(patient.calibration)]
    return patient.with_(calibration=network.preprocessing.apply((pixels * 1.1).round().clip(0, 255)))


@control("enough-with-sixty")
def enough_with_sixty(patient: Patient) -> Patient:
    """A small set that shows the whole range all the same."""
    return patient.with_(calibration=patient.calibration[:64])


@control("some-duplicates")
def some_duplicates(patient: Patient) -> Patient:
    """A fifth of the samples occurs twice."""
    inputs = patient.calibration
    return patient.with_(calibration=np.concatenate([inputs, inputs[: len(inputs) // 5]]))


@control("jpeg-like")
def jpeg_like(patient: Patient) -> Patient:
    """Images that were stored with slight losses."""
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    pixels = network.pixels("calibration")[0][: len(patient.calibration)].astype(np.float32)
    noise = patient.random("jpeg").normal(0, 2, pixels.shape)
    return patient.with_(calibration=network.preprocessing.apply((pixels + noise).round().clip(0, 255)))


def known_control(name: str) -> Callable[[Patient], Patient]:
    """A control of any set."""
    return {k: made for found in (*UNSEEN_CONTROLS.values(), CONTROLS) for k, made in found.items()}[name]
