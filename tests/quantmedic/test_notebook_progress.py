"""Progress in a notebook: one line that is written over, and what a stored notebook keeps of it."""

from typing import Any

import pytest

from quantmedic.api.notebooks import ProgressLine, progress_text, watching
from quantmedic.collectors.data.progress import no_progress

#: What a notebook does before: outside of CI, a line is shown.
OUTSIDE_OF_CI = "import os\nos.environ.pop('CI', None)\nos.environ.pop('QUANTMEDIC_NO_PROGRESS', None)\n"
STEPS = """
import time
from quantmedic.api.notebooks import watching
with watching({wanted}) as told:
    for done in range(300):
        told("validation", done + 1, 300)
        time.sleep(0.004)
"""
REAL = """
import quantmedic
from quantmedic.demo import patient
(float_model, int8_model), data = patient()
quantmedic.diagnose(float_model, int8_model, samples=64, **data).verdict
"""


class Screen:
    """What a notebook shows of one output: all its versions."""

    def __init__(self) -> None:
        self.versions: list[dict[str, str]] = []
        self.now = 0.0

    def show_first(self, data: dict[str, str]) -> "Screen":
        assert not self.versions, "a second output"
        self.versions.append(data)
        return self

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw and self.versions
        self.versions.append(data)

    def line(self) -> ProgressLine:
        return ProgressLine(self.show_first, lambda: self.now)


def test_it_is_written_a_few_times_a_second_and_nothing_is_left() -> None:
    screen = Screen()
    line = screen.line()
    for done in range(1, 1001):
        screen.now += 0.01
        line.show("validation", done, 1000)
    line.close()
    assert 20 <= len(screen.versions) <= 60  # of ten seconds
    assert screen.versions[-2]["text/plain"].startswith("validation 1000 of 1000")
    assert set(screen.versions[-1].values()) == {""}


def test_a_new_stage_is_shown_at_once() -> None:
    screen = Screen()
    line = screen.line()
    line.show("representative", 1, 9)
    line.show("representative", 2, 9)
    line.show("validation", 1, 9)
    assert [found["text/plain"] for found in screen.versions] == ["representative 1 of 9", "validation 1 of 9"]


def test_the_time_left_goes_by_the_steps_of_this_stage() -> None:
    screen = Screen()
    line = screen.line()
    line.show("validation", 10, 100)  # ten were there before, from a checkpoint
    screen.now += 6
    line.show("validation", 40, 100)
    assert screen.versions[-1]["text/plain"] == "validation 40 of 100, 12 s left"
    screen.now += 6
    line.show("blocks", 1, None)
    screen.now += 6
    line.show("blocks", 2, None)
    assert screen.versions[-1]["text/plain"] == "blocks 2"


def test_without_steps_nothing_is_shown_at_all() -> None:
    screen = Screen()
    screen.line().close()
    assert not screen.versions


def test_stages_are_inert_and_need_no_style_of_their_own() -> None:
    found = progress_text('"><script>', 3, 2, 5400.0)["text/html"]
    assert "<script" not in found and 'max="2" value="2"' in found and "1.5 h left" in found
    assert "max=" not in progress_text("trials", 3, None, None)["text/html"]
    assert progress_text("trials", 3, 60, None)["text/plain"] == "trials (s) 3 of 60"


def test_a_function_is_called_and_elsewhere_nothing_is_shown() -> None:
    def told(stage: str, done: int, total: int | None) -> None:
        """Nothing."""

    with watching(told) as found:
        assert found is told
    for wanted in (True, False):  # this is no notebook
        with watching(wanted) as found:
            assert found is no_progress


def executed(*cells: str) -> tuple[list[list[Any]], int]:
    """The stored outputs of each cell, and how often an output was written over."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    updates = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, msg: Any, *others: Any) -> Any:
            updates.extend([1] if msg["msg_type"] == "update_display_data" else [])
            return super().process_message(msg, *others)

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    Client(notebook, timeout=300).execute()
    return [cell.outputs for cell in notebook.cells], len(updates)


@pytest.mark.nightly
def test_in_a_notebook_one_output_is_stored_and_it_is_empty() -> None:
    failing = STEPS.format(wanted=True) + "    raise KeyboardInterrupt\n"
    guarded = "try:\n" + "".join(f"    {line}\n" for line in failing.splitlines()) + "except KeyboardInterrupt: 1\n"
    off, in_ci = STEPS.format(wanted=False), "os.environ['CI'] = 'true'\n" + STEPS.format(wanted=True)
    (_, *outputs), updates = executed(OUTSIDE_OF_CI, guarded, REAL, off, in_ci)
    (interrupted,), (shown, result), *nothing = outputs
    for output in (interrupted, shown):
        assert output["data"] == {"text/plain": "", "text/html": ""}
    assert result["data"]["text/plain"] == "'degraded'" and nothing == [[], []]
    assert updates > 6
