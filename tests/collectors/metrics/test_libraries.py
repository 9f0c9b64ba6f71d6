"""Built-in metrics are what the libraries that people know compute."""

import contextlib
import io

import numpy as np
import pytest
from builders.metrics import LETTERS, boxes_of, ctc_scores, detections, noisy_text

from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.collectors.metrics.sequences import edit_distance
from quantmedic.engine.case.tallies import Tally


def value(name, outputs, labels, cut=None, **options):
    """The metric over all samples, from two batches where ``cut`` says so."""
    metric = load_metric(name, **options)
    parts = [slice(None)] if cut is None else [slice(cut), slice(cut, None)]
    tallies = [metric.tally({key: array[part] for key, array in outputs.items()}, labels[part]) for part in parts]
    return metric.aggregate(Tally.join(tallies))


@pytest.mark.parametrize("seed", range(2))
def test_map_is_that_of_pycocotools(seed):
    coco = pytest.importorskip("pycocotools.coco")
    evaluation = pytest.importorskip("pycocotools.cocoeval")
    rng = np.random.default_rng(seed)
    labels, outputs = detections(rng, samples=25, classes=4)
    truth, found = boxes_of(labels, outputs)
    categories = [{"id": i} for i in range(4)]
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = coco.COCO()
        dataset.dataset = {"images": [{"id": i} for i in range(25)], "categories": categories, "annotations": truth}
        dataset.createIndex()
        judged = evaluation.COCOeval(dataset, dataset.loadRes(found), "bbox")
        judged.params.areaRng, judged.params.areaRngLbl = [[0, 1e10]], ["all"]
        judged.params.maxDets = [100]
        judged.evaluate()
        judged.accumulate()
    precision = judged.eval["precision"][..., 0, 0]  # [overlaps, recalls, classes]
    wanted = {"map": precision, "map50": precision[:1]}
    for name, own in wanted.items():
        assert value(name, outputs, labels, cut=10) == pytest.approx(own[own > -1].mean(), abs=1e-12)


def test_map_of_batches_is_that_of_all():
    labels, outputs = detections(np.random.default_rng(9), samples=20, classes=3)
    assert value("map", outputs, labels, cut=7) == pytest.approx(value("map", outputs, labels), abs=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("classes", [2, 5])
def test_f1_is_that_of_scikit_learn(classes):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(classes)
    scores, labels = rng.normal(size=(80, classes)), rng.integers(0, classes, 80)
    predicted = scores.argmax(axis=1)
    wanted = metrics.f1_score(labels, predicted, average="macro")
    assert value("f1", {"y": scores}, labels, cut=30) == pytest.approx(wanted, abs=1e-12)
    if classes == 2:
        assert value("f1-binary", {"y": scores}, labels) == pytest.approx(metrics.f1_score(labels, predicted))
        one = 1 / (1 + np.exp(-scores[:, :1]))
        wanted = metrics.f1_score(labels, one[:, 0] > 0.3)
        assert value("f1-binary", {"y": one}, labels, options={"threshold": "0.3"}) == pytest.approx(wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("last", [False, True])
def test_miou_is_that_of_scikit_learn(last):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    scores, labels = rng.normal(size=(6, 4, 9, 7)), rng.integers(0, 3, (6, 9, 7))
    labels[rng.random(labels.shape) < 0.1] = 255
    kept = labels != 255
    wanted = metrics.jaccard_score(labels[kept], scores.argmax(axis=1)[kept], average="macro")
    shown = np.moveaxis(scores, 1, -1) if last else scores
    assert value("miou", {"y": shown}, labels, cut=2) == pytest.approx(wanted, abs=1e-12)
    assert value("miou", {"y": scores.argmax(axis=1)[:, np.newaxis]}, labels) == pytest.approx(wanted, abs=1e-12)


def test_error_rates_are_those_of_jiwer():
    jiwer = pytest.importorskip("jiwer")
    rng = np.random.default_rng(5)
    texts = ["the cat sat", "on a mat", "who was that", "a"]
    heard = [noisy_text(rng, text) for text in texts]
    outputs = {"logits": ctc_scores(heard)}
    options = {"alphabet": LETTERS, "blank": "0"}
    for name, wanted in (("cer", jiwer.cer(texts, heard)), ("wer", jiwer.wer(texts, heard))):
        assert value(name, outputs, np.array(texts), cut=3, options=options) == pytest.approx(wanted)


def test_distances_are_those_of_rapidfuzz():
    levenshtein = pytest.importorskip("rapidfuzz.distance").Levenshtein
    rng = np.random.default_rng(8)
    for _ in range(200):
        a, b = (rng.integers(0, 4, rng.integers(0, 9)).tolist() for _ in range(2))
        assert edit_distance(a, b) == levenshtein.distance(a, b)


@pytest.mark.thorough
def test_perplexity_is_the_exponential_of_torchs_cross_entropy():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    scores, labels = rng.normal(size=(5, 6, 11)).astype(np.float32), rng.integers(0, 11, (5, 6))
    labels[:, 4:] = -100
    loss = torch.nn.functional.cross_entropy(torch.tensor(scores).reshape(-1, 11), torch.tensor(labels).reshape(-1))
    assert value("perplexity", {"y": scores}, labels, cut=2) == pytest.approx(float(loss.exp()), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("k", [1, 3])
def test_recall_is_that_of_scikit_learns_neighbours(k):
    neighbors = pytest.importorskip("sklearn.neighbors")
    rng = np.random.default_rng(k)
    centres = rng.normal(size=(6, 8))
    labels = rng.integers(0, 6, 70)
    vectors = centres[labels] + 1.2 * rng.normal(size=(70, 8))
    found = neighbors.NearestNeighbors(n_neighbors=k + 1, metric="cosine").fit(vectors).kneighbors()
    near = found[1][:, :k]
    wanted = (labels[near] == labels[:, None]).any(axis=1).mean()
    assert value(f"recall@{k}", {"y": vectors}, labels, cut=20) == pytest.approx(wanted)
