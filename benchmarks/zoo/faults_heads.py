"""Faults and healthy controls of heads that join what does not belong on one grid: boxes, keypoints, scores."""

from dataclasses import replace

import numpy as np
from onnx import TensorProto, helper

from .controls import control
from .fault import fault
from .patient import Patient
from .surgery import Inapplicable
from .tasks import TAIL

#: Width of the picture in pixels.
PICTURE = 640.0


class _Head:
    """The linear head of a classifier, whose output becomes ``scores``, and what is put beside them."""

    def __init__(self, patient: Patient) -> None:
        self.patient, self.surgeon = patient, patient.surgeon()
        surgeon = self.surgeon
        head = surgeon.linear(surgeon.producer(surgeon.output))
        if head is None or head.node.op_type != "Gemm":
            raise Inapplicable("no linear head")
        if surgeon.constant(head.weight).shape[head.out] != 10:
            raise Inapplicable("not ten classes")
        self.features, self.output = head.node.input[0], surgeon.output
        self.values = patient.values(self.features)[0]
        surgeon.insert_after(self.output, "Softmax", axis=-1)

    def linear(self, name: str, columns: int, low: float, high: float) -> str:
        """Columns between two values, linear in the features."""
        mix = self.patient.random(name).uniform(0, 1, (self.values.shape[1], columns)).astype(np.float32)
        raw = self.values @ mix
        gain, least = (high - low) / np.ptp(raw, axis=0), raw.min(0)
        weight = self.surgeon.put(f"{name}_weight", (mix * gain).astype(np.float32))
        bias = self.surgeon.put(f"{name}_bias", (low - least * gain).astype(np.float32))
        return self.surgeon.add("Gemm", [self.features, weight, bias], name)

    def joined(self, *parts: str, columns: int) -> Patient:
        """These before the scores, in one output."""
        surgeon = self.surgeon
        surgeon.producer(self.output).output[0] = "scores"
        surgeon.add("Concat", [*parts, "scores"], self.output, axis=1)
        surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = columns + 10
        return self.patient.with_(model=surgeon.model, task=TAIL).at(self.output)

    def apart(self, part: str, columns: int) -> Patient:
        """This in an output of its own, behind the scores."""
        value = helper.make_tensor_value_info(part, TensorProto.FLOAT, ["batch", columns])
        self.surgeon.graph.output.append(value)
        return self.patient.with_(model=self.surgeon.model)


def _joint_in_float(patient: Patient) -> Patient:
    """The joining left in float, so that all parts keep grids of their own."""
    joints = tuple(node.name for node in patient.surgeon().nodes("Concat") if "scores" in node.input)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *joints)))


@fault("boxes-and-scores", "graph", "unbalanced-concatenation", heal=_joint_in_float)
def boxes_and_scores(patient: Patient) -> Patient:
    """Four box coordinates of 0 … 640 before the scores of 0 … 1, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("boxes", 4, 40, 600), columns=4)


@fault("boxes-objectness-classes", "graph", "unbalanced-concatenation", heal=_joint_in_float)
def boxes_objectness_classes(patient: Patient) -> Patient:
    """Boxes, an objectness and the scores of the classes, in one output."""
    head = _Head(patient)
    boxes = head.linear("boxes", 4, 40, 600)
    there = head.surgeon.add("Sigmoid", [head.linear("objectness_raw", 1, -2, 2)], "objectness")
    return head.joined(boxes, there, columns=5)


@fault("keypoints-and-scores", "graph", "unbalanced-concatenation", heal=_joint_in_float)
def keypoints_and_scores(patient: Patient) -> Patient:
    """The coordinates of eight keypoints before the scores, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("keypoints", 16, 5, PICTURE - 5), columns=16)


@fault("scores-in-pixels", "precision", "fixed-range-output", "coarse-output", "poor-threshold", graded=True)
def scores_in_pixels(patient: Patient) -> Patient:
    """Boxes and scores in two outputs, of which the scores were given the range of the boxes."""
    head = _Head(patient)
    ill = head.apart(head.linear("boxes", 4, 40, 600), columns=4)
    return ill.with_(recipe=ill.recipe.with_range(head.output, 0, PICTURE * patient.strength)).at(head.output)


@control("boxes-in-another-output")
def boxes_in_another_output(patient: Patient) -> Patient:
    """Scores and boxes in two outputs, each with a grid of its own."""
    head = _Head(patient)
    return head.apart(head.linear("boxes", 4, 40, 600), columns=4)


@control("normalized-boxes")
def normalized_boxes(patient: Patient) -> Patient:
    """Boxes in shares of the picture before the scores, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("boxes", 4, 0.05, 0.95), columns=4)


@control("joint-in-float")
def joint_in_float(patient: Patient) -> Patient:
    """Boxes in pixels before the scores, joined in float."""
    head = _Head(patient)
    return _joint_in_float(head.joined(head.linear("boxes", 4, 40, 600), columns=4))
