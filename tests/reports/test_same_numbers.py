"""Every number that people read, on page, in Markdown and on the console, is one of report.json, rounded."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.context import build_context
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.page.html import render_index
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.write import render_markdown

#: Numbers that stand alone: not part of a name, a version, a path or a rule's code.
NUMBER = re.compile(r"(?<![\w.\-/#:])\d+(?:\.\d+)?(?![\w:]|\.\d)")
#: As measured, in percent or points, in thousands, in millions.
SCALES = (1, 100, 1e-3, 1e-6)
#: Significant digits of what is neither a count nor has a unit of its own.
DIGITS = 3
#: Confidence of every interval.
CONFIDENCE = "95"
#: Parts of the page whose text is no figure of this model: programs, pictures, code, and pages of the manual.
SILENT = {"script", "style", "svg", "code", "pre"}


class Prose(HTMLParser):
    """The text of a page before its manual."""

    def __init__(self, html: str):
        super().__init__()
        self.text: list[str] = []
        self.silent = 0
        self.over = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in SILENT
        self.over |= ("id", "manual") in attrs

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in SILENT

    def handle_data(self, data: str) -> None:
        if not self.silent and not self.over:
            self.text.append(data)


def leaves(content: Any) -> Iterator[Any]:
    """Every value of a report, and how many stand beside each other."""
    if isinstance(content, Mapping | list):
        yield len(content)
        for value in content.values() if isinstance(content, Mapping) else content:
            yield from leaves(value)
    elif content is not None and not isinstance(content, bool):
        yield content


def strangers(report: str, text: str) -> list[str]:
    """Numbers of a text that no value of ``report.json`` rounds to, each with its line."""
    content = json.loads(report)
    found = list(leaves(content))
    numbers = [value for value in found if not isinstance(value, str)] + kept_shares(content)
    values = [abs(value) * scale for value in numbers for scale in SCALES]
    told = {CONFIDENCE, *NUMBER.findall(" ".join(value for value in found if isinstance(value, str)))}
    short = {float(f"{value:.{DIGITS}g}") for value in values}
    rounded = cache(lambda digits: {f"{value:.{digits}f}" for value in values})

    def is_known(number: str) -> bool:
        return number in told or float(number) in short or number in rounded(len(number.partition(".")[2]))

    return [f"{n}: {line}" for line in text.splitlines() for n in NUMBER.findall(line) if not is_known(n)]


def kept_shares(content: Any) -> list[float]:
    """What quantization left of the task metric, and of the files' size: the quotients that are shown."""
    metrics, model = content["metrics"], content["model"]
    pairs = (
        (metrics["quantized_value"], metrics["float_value"]),
        (model["bytes_quantized"], model["bytes_float"]),
        (model["bytes_float"], model["bytes_quantized"]),
    )
    return [above / below for above, below in pairs if above is not None and below]


def texts(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> dict[str, str]:
    """What people read, by format."""
    context = build_context(diagnosis, manuals)
    return {
        "page": " ".join(Prose(render_index(context, diagnosis)).text),
        # A zero-width space keeps GitHub from making links of what others wrote.
        "markdown": unescape(render_markdown(context)).replace("\u200b", ""),
        "console": render_console(diagnosis),
        "verbose console": render_console(diagnosis, verbosity="verbose"),
    }


def odd_numbers(diagnosis: Diagnosis, manuals: Mapping[str, str]) -> dict[str, list[str]]:
    """What stands in a format and not in report.json, by format."""
    report = render_json(diagnosis)
    found = {form: strangers(report, text) for form, text in texts(diagnosis, manuals).items()}
    return {form: odd for form, odd in found.items() if odd}


@pytest.mark.thorough
def test_every_number_that_is_read_is_one_of_report_json(
    subtests: pytest.Subtests, manuals: Mapping[str, str], request: pytest.FixtureRequest
) -> None:
    for name in ["diagnosis", "proven", "healthy", "checked"]:
        with subtests.test(name=name):
            found = request.getfixturevalue(name)
            assert odd_numbers(found, manuals) == {}


@pytest.mark.thorough
def test_so_it_is_with_a_measured_model(patient_case: Path, manuals: Mapping[str, str]) -> None:
    found = quantmedic.judge(quantmedic.load_case(patient_case))
    assert odd_numbers(found, manuals) == {}


def test_a_number_that_report_json_does_not_have_is_noticed(subtests: pytest.Subtests, diagnosis: Diagnosis) -> None:
    for change in [lambda drop: drop + 0.013, lambda drop: drop * 2]:
        with subtests.test(change=change):
            other = diagnosis.metrics.model_copy(update={"drop": change(diagnosis.metrics.drop or 0)})
            shown = render_console(diagnosis.model_copy(update={"metrics": other}))
            assert strangers(render_json(diagnosis), shown)
