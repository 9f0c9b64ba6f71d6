"""Outputs and labels of the task metrics that need more than one number per sample."""

import numpy as np

#: One character per class; the first is the blank.
LETTERS = "-abcdefghijklmnopqrstuvwxyz "


def detections(rng, samples, classes, boxes=6, noise=0.15):
    """Labelled boxes ``[samples, boxes, 5]``, and boxes, scores and classes that find some of them.

    Args:
        rng: Random numbers.
        samples: Number of samples.
        classes: Number of classes.
        boxes: Boxes that a sample has room for; the rest is padding.
        noise: How far a detected corner lies off, over the side of the box.
    """
    corner, side = rng.uniform(0, 50, (samples, boxes, 2)), rng.uniform(8, 30, (samples, boxes, 2))
    kinds = rng.integers(0, classes, (samples, boxes)).astype(float)
    kinds[rng.random((samples, boxes)) < 0.3] = -1
    labels = np.concatenate([corner, corner + side, kinds[..., np.newaxis]], axis=2)
    shifts = noise * rng.normal(size=(samples, boxes, 4)) * np.tile(side, 2)
    near = labels[..., :4] + shifts
    near = np.concatenate([np.minimum(near[..., :2], near[..., 2:]), np.maximum(near[..., :2], near[..., 2:])], axis=2)
    wrong = rng.uniform(0, 30, (samples, boxes, 2))
    other = np.concatenate([wrong, wrong + rng.uniform(5, 30, wrong.shape)], axis=2)
    found = np.concatenate([near, other], axis=1)
    guesses = np.where(rng.random((samples, boxes)) < 0.85, kinds, rng.integers(0, classes, (samples, boxes)))
    named = np.concatenate([guesses, rng.integers(0, classes, (samples, boxes))], axis=1)
    scores = np.concatenate([rng.beta(5, 2, (samples, boxes)), rng.beta(2, 4, (samples, boxes))], axis=1)
    scores[rng.random(scores.shape) < 0.1] = 0
    return labels, {"boxes": found, "scores": scores, "classes": named}


def boxes_of(labels, outputs):
    """The same as annotations and results of COCO."""
    truth, found = [], []
    for i, own in enumerate(labels):
        for left, top, right, bottom, kind in own[own[:, 4] >= 0].tolist():
            box = {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
            truth.append({"id": len(truth) + 1, "image_id": i, "category_id": int(kind), "iscrowd": 0, **box})
        rows = zip(*(outputs[name][i].tolist() for name in ("boxes", "scores", "classes")), strict=True)
        for (left, top, right, bottom), score, kind in rows:
            if score > 0 and kind >= 0:
                box = [left, top, right - left, bottom - top]
                found.append({"image_id": i, "category_id": int(kind), "bbox": box, "score": score})
    return truth, found


def noisy_text(rng, text):
    """The text with some of its letters left out or replaced."""
    found = []
    for letter in text:
        luck = rng.random()
        if luck > 0.1:
            found.append(letter if luck > 0.25 else LETTERS[rng.integers(1, len(LETTERS))])
    return "".join(found).strip() or "x"


def ctc_scores(texts):
    """Scores ``[samples, steps, classes]`` whose greedy decoding gives the texts: every letter twice, then a blank."""
    paths = [[step for letter in text for step in (LETTERS.index(letter),) * 2 + (0,)] for text in texts]
    scores = np.zeros((len(texts), max(map(len, paths)), len(LETTERS)), np.float32)
    scores[..., 0] = 0.5
    for i, path in enumerate(paths):
        scores[i, np.arange(len(path)), path] = 1.0
    return scores


def pair_of(name, rng, samples):
    """What a metric keeps of a float and of a worse quantized model, on samples drawn anew."""
    from quantmedic.collectors.metrics.metric import load_metric

    metric = load_metric(name)
    labels, *outputs = _DRAWN[name.partition("@")[0]](rng, samples)
    return tuple(metric.tally({"y": own} if isinstance(own, np.ndarray) else own, labels) for own in outputs)


def _classes(rng, samples, classes):
    labels = rng.integers(0, classes, samples)
    scores = 1.2 * np.eye(classes)[labels] + rng.normal(size=(samples, classes))
    return labels, scores, scores + 0.5 * rng.normal(size=scores.shape)


def _maps(rng, samples):
    labels = np.sort(rng.integers(0, 3, (samples, 36)), axis=1).reshape(samples, 6, 6)
    scores = np.moveaxis(np.eye(3)[labels], -1, 1) + 0.7 * rng.normal(size=(samples, 3, 6, 6))
    return labels, scores, scores + rng.normal(size=(samples, 3, 1, 1)) + 0.4 * rng.normal(size=scores.shape)


def _boxes(rng, samples):
    labels, outputs = detections(rng, samples, classes=2, boxes=4)
    moved = outputs["boxes"] + 1.5 * rng.normal(size=outputs["boxes"].shape)
    shaken = np.clip(outputs["scores"] + 0.1 * rng.normal(size=moved.shape[:2]), 0, 1)
    scores = np.where(outputs["scores"] > 0, shaken, 0)
    return labels, outputs, {**outputs, "boxes": moved, "scores": scores}


def _tokens(rng, samples):
    places, shape = np.arange(12), (samples, 12)
    inside = places < rng.integers(3, 13, samples)[:, np.newaxis]
    labels = np.where(inside, rng.integers(1, 6, shape), -1)
    heard = np.where(inside & (rng.random(shape) < 0.1), rng.integers(1, 6, shape), labels)
    return labels, heard, np.where(inside & (rng.random(shape) < 0.06), rng.integers(1, 6, shape), heard)


def _logits(rng, samples):
    labels = rng.integers(0, 5, (samples, 8))
    scores = rng.gamma(2, 1, (samples, 1, 1)) * np.eye(5)[labels] + rng.normal(size=(samples, 8, 5))
    return labels, scores, scores + 0.5 * rng.normal(size=scores.shape)


def _vectors(rng, samples):
    labels = rng.integers(0, 8, samples)
    vectors = np.eye(8)[labels] * 2 + rng.normal(size=(samples, 8))
    return labels, vectors, vectors + 0.5 * rng.normal(size=vectors.shape)


_DRAWN = {
    "map": _boxes,
    "miou": _maps,
    "f1": lambda rng, samples: _classes(rng, samples, 4),
    "f1-binary": lambda rng, samples: _classes(rng, samples, 2),
    "cer": _tokens,
    "perplexity": _logits,
    "recall": _vectors,
}
