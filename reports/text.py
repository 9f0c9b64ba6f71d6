"""Names, numbers and facts as people read them: one way for every format."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Annotated

from pydantic.fields import FieldInfo

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.metrics.kinds import is_share, kind_of
from quantmedic.engine.text import visible as visible

NOT_MEASURED = "not measured"
NAME_LIMIT = 120
#: Facts that are put in words are longer than names, and told by their many words.
SENTENCE_LIMIT = 600
WORDS_OF_SENTENCE = 6
UNITS_SHOWN = ("bits", "levels", "steps", "codes", "σ", "bytes")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
#: Code in a line, which holds no links, or a link to a file beside the page or to a place in it.
RELATIVE_LINK = re.compile(
    r"(?P<code>(?<!`)(`+)(?!`).*?(?<!`)\2(?!`))"
    r"|(?<!\\)(?P<picture>!?)\[(?P<text>(?:\\.|[^\]\\])*)\]"
    r"\((?!https?:|mailto:)(?P<target>(?:[^()\s]|\([^()\s]*\))*)(?:\s+\"[^\"]*\")?\)"
)
#: The same, and the bracket that follows, which takes the page's name in.
_LINK_AND_BRACKET = re.compile(rf"{RELATIVE_LINK.pattern}(?P<bracket>\s\()?")
_RULE_ID = re.compile(r"[A-Z]\d{3}")

#: Characters that end or begin markup, and those that terminals may obey.
_UNSAFE_IN_JSON = re.compile(r"[<>&\x7f-\U0010ffff]")
#: First characters that a spreadsheet takes for a formula, the wide ones of East Asian keyboards too.
_FORMULA = frozenset("=+-@|%＝＋－＠")


@dataclass(frozen=True)
class FactInfo:
    """What the glossary says about one fact."""

    description: Annotated[str, "formula or meaning"]
    unit: Annotated[str | None, "unit, None for counts, names and flags"]


def printable(text: str) -> str:
    """Every line without control and bidi characters."""
    return "\n".join(visible(line.expandtabs(4)) for line in text.splitlines())


def without_links(text: str) -> str:
    """Markdown for a place where the files beside it are missing: relative links become plain text, pictures go."""
    lines = (line if code else RELATIVE_LINK.sub(_link_text, line) for line, code in lines_with_fences(text))
    return "".join(lines)


def with_page_names(text: str) -> str:
    """Markdown for a place where links lead nowhere: each is its text and the page's name, as ``explain`` takes it."""
    # Whole blocks of lines: the text of a link may break.
    blocks = groupby(lines_with_fences(text), key=itemgetter(1))
    joined = (("".join(line for line, _ in lines), code) for code, lines in blocks)
    return "".join(block if code else _LINK_AND_BRACKET.sub(_named_page, block) for block, code in joined)


def _named_page(match: re.Match[str]) -> str:
    shown, bracket = _link_text(match), match["bracket"] or ""
    page, _, _ = (match["target"] or "").partition("#")
    word = page.rpartition("/")[2].removesuffix(".md")
    plain = shown.strip("`*").removeprefix("quantmedic explain ").casefold()
    # A rule's id is a name that ``explain`` takes, whatever page it stands on.
    if not shown or not page.endswith(".md") or plain == word.casefold() or _RULE_ID.fullmatch(shown):
        return shown + bracket
    return f"{shown} ({word};{bracket[0]}" if bracket else f"{shown} ({word})"


def lines_with_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Lines of Markdown with their ends, and whether each belongs to a block of code between fences."""
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        yield line, bool(mark or fence)
        if mark is not None and not fence:
            fence = mark[1]
        elif mark is not None and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""


def _link_text(match: re.Match[str]) -> str:
    if match["code"] is not None:
        return match[0]
    return "" if match["picture"] else match["text"]


def name(text: str | None) -> str:
    """A name from a model: visible and of bounded length."""
    return NOT_MEASURED if text is None else visible(text, NAME_LIMIT)


def spreadsheet_text(text: str) -> str:
    """A name that a spreadsheet shows as it is, rather than as the formula that it begins like."""
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in _FORMULA else shown


def inert_json(text: str) -> str:
    """JSON in ASCII that neither markup nor a terminal takes for its own."""
    return _UNSAFE_IN_JSON.sub(_json_escape, text) + "\n"


def _json_escape(match: re.Match[str]) -> str:
    """A character as JSON escapes it: in UTF-16."""
    units = match.group().encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


def number(value: float | None, digits: int = 3) -> str:
    """A number to ``digits`` significant digits; counts stay exact."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "-∞"
    rounded = float(f"{value:.{digits}g}")
    if 1000 <= abs(rounded) < 1e6:
        return f"{rounded:.0f}"
    text = f"{value + 0.0:.{digits}g}"  # never -0
    mantissa, has_exponent, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if has_exponent else text


def level(value: float | None, sign: str = "") -> str:
    """A level in dB with one decimal, for columns that name the unit; ``sign="+"`` shows the sign of gains."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{round(value, 1) + 0.0:{sign}.1f}"


def decibels(value: float | None, sign: str = "") -> str:
    """A level with its unit."""
    return NOT_MEASURED if value is None else f"{level(value, sign)} dB"


def percent(value: float | None, decimals: int = 2) -> str:
    """A share as percent."""
    return _hundredfold(value, decimals, "%")


def tenths(value: float | None) -> str:
    """A share as percent with one decimal."""
    return percent(value, 1)


def points(value: float | None) -> str:
    """A difference of shares as percent points."""
    return _hundredfold(value, 2, "points")


def metric_value(value: float | None, metric: str | None) -> str:
    """The task metric: percent where it is a share, else four significant digits."""
    return percent(value) if is_share(metric) else number(value, 4)


def metric_change(value: float | None, metric: str | None) -> str:
    """A change of the task metric: percent points where it is a share, else four significant digits."""
    return points(value) if is_share(metric) else number(value, 4)


def metric_interval(low: float | None, high: float | None, metric: str | None) -> str:
    """Both ends of an interval of changes, without their unit."""
    return f"{bare_change(low, metric)} … {bare_change(high, metric)}"


def bare_change(value: float | None, metric: str | None) -> str:
    """A change of the task metric without its unit."""
    return metric_change(value, metric).removesuffix(" points")


def si_amount(value: float) -> str:
    """A count with a prefix of the SI."""
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{number(value / size)} {prefix}"
    return str(value)


def bytes_text(size: int | float) -> str:
    """The size of a file."""
    return f"{si_amount(size)}B" if size >= 1000 else f"{size:g} bytes"


def loss_word(higher_is_better: bool | None) -> str:
    """What a task metric does where a network gets worse: perplexity and errors rise, all others drop."""
    return "rise" if higher_is_better is False else "drop"


def metric_label(metric: str | None) -> str:
    """How the task metric is called in reports."""
    kind = kind_of(metric)
    return kind.label if kind.label != metric else name(metric)


def measure(value: object, unit: str | None = None) -> str:
    """Any value of a fact, with its unit where that helps."""
    match value:
        case None:
            return NOT_MEASURED
        case bool():
            return "yes" if value else "no"
        case str():
            return visible(value, SENTENCE_LIMIT if value.count(" ") >= WORDS_OF_SENTENCE else NAME_LIMIT)
        case tuple() | list():
            return ", ".join(measure(item, unit) for item in value) or "none"
        case int() | float() if unit == "dB":
            return decibels(value)
        case int() | float():
            return f"{number(value)} {unit}" if unit in UNITS_SHOWN else number(value)
    return visible(str(value), NAME_LIMIT)


def count(size: int, noun: str, plural: str | None = None) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{size} {noun}" if size == 1 else f"{size} {plural or noun + 's'}"


def first_few(texts: Sequence[str], most: int) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def capital(text: str) -> str:
    """A phrase as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """A phrase as a sentence of its own."""
    return capital(text) if text.endswith((".", "!", "?")) else f"{capital(text)}."


@cache
def glossary() -> dict[str, FactInfo]:
    """Every path that a rule may name, of any scope."""
    paths: dict[str, FactInfo] = {}
    for scope in SCOPES:
        for path, info in fact_paths(scope).items():
            paths.setdefault(path, field_info(info))
    return paths


def field_info(field: FieldInfo) -> FactInfo:
    """Glossary entry of the field of a class of facts."""
    return FactInfo(field.description or "", declared_unit(field))


def fact_info(path: str) -> FactInfo:
    """Glossary entry of a path; an empty one where the path is unknown."""
    return glossary().get(path, FactInfo("", None))


def _hundredfold(value: float | None, decimals: int, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{round(100 * value, decimals) + 0.0:.{decimals}f} {unit}"
