"""Unseen faults of what is compared, set F."""

from dataclasses import replace

import numpy as np

from ..fault import fault
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_e.sanity import classes
from ..unseen_e.weights import deployed
from .weights import FOREIGN


def without_turn(surgeon: Surgeon, name: str) -> None:
    """Let what follows a repeated step read what came before it.

    Raises:
        Inapplicable: Nothing is repeated.
    """
    free = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    states = [n.output[0] for n in surgeon.nodes("Mul") if free is not None and free.output[0] in n.input]
    if name != "mazes" or len(states) < 3:
        raise Inapplicable("nothing is repeated")
    surgeon.reroute(states[-1], states[-2])


@fault(
    "labels-counted-from-one", "sanity", "labels-do-not-fit", harms=False, unseen="f", also=("float-export-differs",)
)
def labels_counted_from_one(patient: Patient) -> Patient:
    """The file of labels counts classes from one and the network from none; the last one became the first."""
    return relabelled(patient, lambda labels, count: (labels + 1) % count)


@fault(
    "labels-of-an-older-list", "sanity", "labels-do-not-fit", harms=False, unseen="f", also=("float-export-differs",)
)
def labels_of_an_older_list(patient: Patient) -> Patient:
    """Labels are numbers of an older list of classes, which had them in another order."""
    return relabelled(patient, lambda labels, count: patient.random("list").permutation(count)[labels])


def relabelled(patient: Patient, change) -> Patient:
    """With other labels, where the expert is shown any."""
    count = patient.values(patient.surgeon().output, samples=1)[0].shape[1]
    if not patient.network.shows_labels or patient.labels is None or count < 3:
        raise Inapplicable("no labels")
    return patient.with_(labels=change(patient.labels, count))


@fault(
    "exported-with-a-turn-less",
    "sanity",
    "float-export-differs",
    "operator-departs",
    unseen="f",
    also=("altered-float-tensors", "stage-loses-accuracy", "layer-worse-than-peers"),
)
@costly
def exported_with_a_turn_less(patient: Patient) -> Patient:
    """What was deployed repeats its step once less than the float model."""
    surgeon = patient.surgeon()
    without_turn(surgeon, patient.network.name)
    return deployed(patient, surgeon)


@fault(
    "last-trees-left-out",
    "sanity",
    "float-export-differs",
    "foreign-weights",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers", "dead-weight-groups", "dead-channels"),
)
@severe(0.03, 0.9)
def last_trees_left_out(patient: Patient, amount: float) -> Patient:
    """The deployed model was exported from a checkpoint that had fewer trees; the others have empty leaves."""
    surgeon = patient.surgeon()
    leaves = surgeon.constant("leaves.weight")
    if leaves is None:
        raise Inapplicable("no trees")
    kept = leaves.copy()
    trees = leaves.shape[1] // 8
    kept[:, -8 * max(1, round(amount * trees)) :] = 0
    surgeon.put("leaves.weight", kept)
    return deployed(patient, surgeon, *(n.name for n in surgeon.consumers("leaves.weight")))


@fault(
    "temperature-built-in",
    "sanity",
    "float-export-differs",
    "output-not-dequantized",
    "foreign-weights",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "stage-loses-accuracy", "layer-worse-than-peers", "operator-departs"),
)
@mild(0.005, 3)
def temperature_built_in(patient: Patient, amount: float) -> Patient:
    """Somebody fitted a temperature to make scores honest, and folded it into the last layer of the deployed model."""
    surgeon = patient.surgeon()
    head = classes(patient, surgeon)
    size = surgeon.constant(head.weight).shape[head.out]
    surgeon.scale_weights(head, head.out, np.full(size, 1 / (1 + amount), np.float32), bias=True)
    return deployed(patient, surgeon, head.node.name)


@fault(
    "another-floor-under-the-root",
    "sanity",
    *FOREIGN,
    "operator-departs",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "stage-loses-accuracy", "sensitive-operator"),
)
@mild(0.03, 300)
def another_floor_under_the_root(patient: Patient, amount: float) -> Patient:
    """What keeps roots from zero is a habit of each library: that of the deployed model is another number."""
    surgeon = patient.surgeon()
    adders = [n for n in surgeon.nodes("Add") if any(r.op_type == "Sqrt" for r in surgeon.consumers(n.output[0]))]
    floors = [name for n in adders for name in n.input if surgeon.constant(name) is not None]
    if not floors:
        raise Inapplicable("no roots")
    for name in dict.fromkeys(floors):
        surgeon.put(name, (surgeon.constant(name) * (1 + amount)).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for n in adders))


@fault("loop-left-out-by-name", "sanity", "partly-quantized", harms=False, unseen="f", also=("not-quantized",))
def loop_left_out_by_name(patient: Patient) -> Patient:
    """A pattern that should leave out one step matches all that repeat: most of the network stays as it was."""
    surgeon = patient.surgeon()
    names = [n.name for n in surgeon.graph.node if "turn" in n.name or "rounds" in n.name]
    if not names:
        raise Inapplicable("nothing is repeated")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *names)))
