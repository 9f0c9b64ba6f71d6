"""One function for all searches: what it takes and refuses, and that every record is shown in every format."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.onnx_models import conv_net, images, qdq, save_pair

import quantmedic
from quantmedic.api.options import TAKEN
from quantmedic.engine.errors import QuantmedicError

pytestmark = pytest.mark.thorough

X = images(40)
LABELLED = {"image": X, "labels": np.arange(len(X)) % 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "sensitivity": {"validation": LABELLED, "modes": ["one"], "samples": 16},
    "fallback": {"validation": X, "min_sqnr_db": 20.0, "samples": 16},
    "calibrations": {"validation": LABELLED, "representative": X[:16], "methods": ["min-max"]},
    "debugger": {"validation": X, "samples": 3, "denylists": ["first"]},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"), conv_net(), qdq(conv_net(), {"image": X}))


@pytest.mark.parametrize("what", OPTIONS)
def test_every_search_is_shown_in_every_format(what: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    models = pair[:1] if what == "calibrations" else pair
    record = quantmedic.search(what, *models, threads=1, progress=False, **OPTIONS[what])
    formats = ("text", "markdown", "html", "json", "csv", "svg")
    written = {path.name: path.read_text() for path, _ in quantmedic.write_search(record, tmp_path, formats)}
    assert {f"{what}.{suffix}" for suffix in ("txt", "md", "html", "json")} <= set(written)
    assert written[f"{what}.txt"].startswith(f"{what.upper()}  ")
    assert written[f"{what}.md"].startswith(f"# {what.capitalize()} of ") and "\n\n\n" not in written[f"{what}.md"]
    tables = sum(line.startswith(("|--:", "|---")) for line in written[f"{what}.md"].splitlines())
    assert written[f"{what}.html"].count("<table") == tables
    with pytest.raises(QuantmedicError, match="unknown format"):
        quantmedic.write_search(record, tmp_path, ["pdf"])


def test_a_search_refuses_what_it_does_not_take(pair: tuple[Path, Path]) -> None:
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("sensitivity", *pair), {"max_drop": 1.0}, "sensitivity takes no argument 'max_drop'"),
        (("fallback", pair[0]), {}, "give both"),
        (("everything", *pair), {}, "there is no search 'everything'"),
    ]
    for models, options, words in wrong:
        with pytest.raises(TypeError, match=words):
            quantmedic.search(*models, validation=X, **options)


def test_signatures_name_the_options() -> None:
    known = inspect.signature(quantmedic.search).parameters
    assert set().union(*TAKEN.values()) <= set(known) and known["seed"].default == 0
    said = quantmedic.search.__doc__
    assert said is not None and all(said.count(f"\n        {name}: ") == 1 for name in known if name != "options")
    with pytest.raises(AttributeError, match=r"use quantmedic.search\('sensitivity', …\)"):
        quantmedic.sensitivity  # noqa: B018
