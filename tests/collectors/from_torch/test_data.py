"""What users feed torch modules with: every usual form is read, every other one is refused in words."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from builders.torch_models import Keywords, Many, TwoInputs, batches, made, rounded, rows, steps  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

import quantmedic  # noqa: E402
from quantmedic.api.opening import open_pair  # noqa: E402
from quantmedic.api.options import CollectOptions  # noqa: E402
from quantmedic.engine.case.records import Case  # noqa: E402
from quantmedic.engine.errors import DataError, QuantmedicError  # noqa: E402

pytestmark = pytest.mark.thorough

X = rows()
LABELS = torch.arange(24) % 3
NET = made(Many)
PAIR = NET, rounded(NET, X)
LEFT, RIGHT = rows(24, 16, 1), rows(24, 12, 2)
TWO = made(TwoInputs)
TWO_PAIR = TWO, rounded(TWO, (LEFT, RIGHT))


def collected(pair: Any, data: Any, **options: Any) -> Case:
    return quantmedic.collect(*pair, validation=data, threads=1, **options)


def numbers(case: Case) -> dict[str, Any]:
    """Everything that depends on the samples and not on how they came."""
    statistics = case.statistics["validation"]
    names = [tensor.float_name for tensor in case.record.tensors]
    return {
        "names": names[1:],
        "count": statistics.columns["count"].tolist(),
        "min": statistics.columns["min"].tolist(),
        "max": statistics.columns["max"].tolist(),
        "seen": case.record.datasets["validation"].seen,
    }


def chunks(*arrays: Any, sizes: tuple[int, ...] = (8, 8, 8)) -> list[tuple[Any, ...]]:
    ends = list(itertools.accumulate(sizes))
    return [tuple(a[end - size : end] for a in arrays) for size, end in zip(sizes, ends, strict=True)]


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return X[i], int(LABELS[i])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


ONE_INPUT: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "float64 tensor": lambda: X.double(),
    "array": lambda: X.numpy(),
    "function of tensors": lambda: batches(X),
    "function of float64 arrays": lambda: batches(X.numpy().astype(np.float64)),
    "function of lists": lambda: lambda: ([x] for (x,) in chunks(X)),
    "function of dicts": lambda: lambda: ({"x": x} for (x,) in chunks(X)),
    "function that returns a list": lambda: lambda: [x for (x,) in chunks(X)],
    "list of batches": lambda: [x for (x,) in chunks(X)],
    "mapping": lambda: {"x": X},
    "changing batch sizes": lambda: [x for (x,) in chunks(X, sizes=(1, 7, 13, 3))],
    "an empty batch among them": lambda: [x for (x,) in chunks(X, sizes=(8, 0, 16))],
    "pairs with labels": lambda: chunks(X, LABELS),
    "nested pairs": lambda: [((x,), y) for x, y in chunks(X, LABELS)],
    "dict and labels": lambda: [({"x": x}, y) for x, y in chunks(X, LABELS)],
    "labels in the dict": lambda: [{"x": x, "labels": y} for x, y in chunks(X, LABELS)],
    "labels in the mapping": lambda: {"x": X, "labels": LABELS},
    "DataLoader": lambda: DataLoader(TensorDataset(X), batch_size=7),
    "DataLoader of a data set": lambda: DataLoader(Pairs(), batch_size=5),
    "DataLoader of a stream": lambda: DataLoader(Stream(), batch_size=5),
    "requires grad": lambda: batches(X.clone().requires_grad_()),
    "transposed memory": lambda: batches(X.t().contiguous().t()),
    "a name of its own": lambda: [{"numbers": x} for (x,) in chunks(X)],
}
LABELLED = [form for form in ONE_INPUT if "label" in form or "nested" in form] + ["DataLoader of a data set"]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return numbers(collected(PAIR, X))


def assert_read(pair: Any, data: Any, wanted: list[Any], labelled: bool) -> None:
    """Samples as they arrive at the module, and their labels."""
    (dataset,) = open_pair(*pair, CollectOptions(validation=data))[1].values()
    read = list(dataset.batches(8))
    for name, x in zip(sorted(read[0].inputs), wanted, strict=True):
        np.testing.assert_array_equal(np.concatenate([batch.inputs[name] for batch in read]), x.numpy())
    assert dataset.labelled == labelled
    if labelled:
        assert np.concatenate([batch.labels for batch in read]).tolist() == LABELS.tolist()


def test_every_form_of_one_input_is_read(subtests):
    for form, give in ONE_INPUT.items():
        with subtests.test(form):
            assert_read(PAIR, give(), [X], form in LABELLED)


def test_forms_give_the_same_numbers(expected, subtests):
    for form in ("function of float64 arrays", "changing batch sizes", "DataLoader of a data set", "nested pairs"):
        with subtests.test(form):
            case = collected(PAIR, ONE_INPUT[form]())
            assert numbers(case) == expected
            assert case.record.datasets["validation"].labelled == (form in LABELLED)
            if form in LABELLED:
                assert case.statistics["validation"].samples["label"].tolist() == LABELS.tolist()


TWO_INPUTS: dict[str, Callable[[], Any]] = {
    "tuples": lambda: chunks(LEFT, RIGHT),
    "dicts": lambda: [{"left": a, "right": b} for a, b in chunks(LEFT, RIGHT)],
    "dicts in another order": lambda: [{"right": b, "left": a} for a, b in chunks(LEFT, RIGHT)],
    "mapping": lambda: {"left": LEFT, "right": RIGHT},
    "tuples and labels": lambda: [((a, b), y) for a, b, y in chunks(LEFT, RIGHT, LABELS)],
    "DataLoader": lambda: DataLoader(TensorDataset(LEFT, RIGHT), batch_size=6),
    "three in a row, the last one labels": lambda: chunks(LEFT, RIGHT, LABELS),
}


def test_every_form_of_two_inputs_is_read(subtests):
    for form, give in TWO_INPUTS.items():
        with subtests.test(form):
            assert_read(TWO_PAIR, give(), [LEFT, RIGHT], "label" in form)
    case = collected(TWO_PAIR, TWO_INPUTS["dicts in another order"]())
    found = {t.float_name: i for i, t in enumerate(case.record.tensors)}
    for name, x in (("left", LEFT), ("right", RIGHT)):
        statistics = case.statistics["validation"].tensor(found[name])
        assert statistics.min.min() == pytest.approx(float(x.min()))
        assert statistics.max.max() == pytest.approx(float(x.max()))


def test_arguments_that_can_only_be_named():
    net = made(Keywords)
    pair = net, rounded(net, {"left": LEFT, "right": RIGHT})
    named = collected(pair, [{"left": a, "right": b} for a, b in chunks(LEFT, RIGHT)])
    placed = collected(pair, chunks(LEFT, RIGHT))
    assert numbers(named) == numbers(placed) and numbers(named)["seen"] == 24


class Scaled(torch.nn.Module):
    """One input more, that has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(16, 4)

    def forward(self, x: Any, mask: Any = None) -> Any:
        return self.fc(x if mask is None else x * mask)


def test_inputs_with_a_default_may_be_given_or_left_out():
    net = made(Scaled)
    pair = net, rounded(net, X)
    mask = (torch.arange(24 * 16).reshape(24, 16) % 2).float()
    assert collected(pair, batches(X)).record.datasets["validation"].seen == 24
    assert collected(pair, chunks(X, LABELS)).record.datasets["validation"].labelled
    case = collected(pair, [{"x": x, "mask": m} for x, m in chunks(X, mask)])
    assert "mask" in [tensor.float_name for tensor in case.record.tensors] or case.record.operators[0].op_type == "Mul"
    assert not case.record.datasets["validation"].labelled


def test_quantized_tensors_feed_their_values():
    codes = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    assert numbers(collected(PAIR, [codes])) == numbers(collected(PAIR, [codes.dequantize()]))


# --- refused ---------------------------------------------------------------------------------------------------------


def used_up() -> Any:
    generator = (x for (x,) in chunks(X))
    return lambda: generator


def failing() -> Iterator[Any]:
    yield X[:8]
    raise KeyError("next batch")


def dry() -> Callable[[], Iterator[Any]]:
    shared = iter([x for (x,) in chunks(X)])

    def same() -> Iterator[Any]:
        yield from shared

    return same


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (lambda: (x for (x,) in chunks(X)), "generator"),
    "the same used-up generator": (used_up, "used up"),
    "a function that runs dry": (dry, "no samples"),
    "nothing": (lambda: [], "no batch"),
    "numbers": (lambda: [1, 2, 3], "int"),
    "a scalar tensor": (lambda: torch.tensor(1.0), "sample axis"),
    "a function with arguments": (lambda: lambda split: batches(X)(), "argument"),
    "a function that fails": (lambda: failing, "next batch"),
    "inputs of other width": (lambda: batches(rows(24, 15)), "15"),
    "a data set of samples": (Pairs, "DataLoader"),
    "a stream of samples": (Stream, "DataLoader"),
    "a misspelt name": (lambda: [{"x": X, "mask": X}], "mask"),
    "labels that are no numbers": (lambda: [(X, ["cat"] * 24)], "label"),
    "a batch with another number of inputs": (lambda: [(X[:8],), (X[8:16], X[8:16], X[8:16])], "3 inputs"),
    "a batch without a name": (lambda: [{"x": X[:8]}, {"y": X[8:]}], "x"),
    "labels of other length": (lambda: [(X[:8], LABELS[:7])], "7"),
    "labels for some": (lambda: [(X[:8], LABELS[:8]), X[8:]], "labels"),
    "sizes that differ": (lambda: {"x": X, "labels": LABELS[:5]}, "5"),
    "a file that is missing": (lambda: "missing.npz", "missing.npz"),
    "complex numbers": (lambda: X.to(torch.complex64), "complex"),
}


def test_what_cannot_be_read_is_said(subtests):
    for form, (give, said) in REFUSED.items():
        with subtests.test(form):
            with pytest.raises(QuantmedicError) as caught:
                collected(PAIR, give())
            assert said in str(caught.value)
            assert caught.value.where, "names no place"
            assert caught.value.help, "names no next step"


def test_no_data():
    with pytest.raises(DataError, match="no data"):
        quantmedic.collect(*PAIR)


def test_files_feed_modules(tmp_path, expected):
    np.savez(tmp_path / "data.npz", x=X.numpy(), labels=LABELS.numpy())
    np.save(tmp_path / "data.npy", X.numpy())
    case = collected(PAIR, tmp_path / "data.npz")
    assert numbers(case) == expected and case.record.datasets["validation"].labelled
    assert numbers(collected(PAIR, str(tmp_path / "data.npy"))) == expected


def test_the_users_tensors_stay_as_they_are():
    x = steps(8)
    net = made(lambda: torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 4)))
    before = x.clone()
    collected((net, rounded(net, x.clone())), [x])
    assert torch.equal(x, before)


def test_loaders_that_shuffle_leave_the_users_random_numbers_alone():
    """Also where they fail."""

    class Broken(Pairs):
        def __getitem__(self, i: int) -> Any:
            if i == 17:
                raise OSError("the disk is full")
            return super().__getitem__(i)

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    case = collected(PAIR, DataLoader(TensorDataset(X, LABELS), batch_size=6, shuffle=True))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert case.record.datasets["validation"].seen == 24
    with pytest.raises(DataError, match="the disk is full"):
        collected(PAIR, DataLoader(Broken(), batch_size=6, shuffle=True))
    assert torch.equal(torch.random.get_rng_state(), before)
