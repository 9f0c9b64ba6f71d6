"""What a word means: rule, cause, fact, threshold, topic, toolchain, remedy, or a word that the manual explains."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill

from quantmedic.api.rulebase import load_manuals, load_rulebase
from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.errors import QuantmedicError
from quantmedic.engine.rules.examples import explained_rules
from quantmedic.engine.rules.rulebase import RuleBase

#: A rule's code, maybe without its zeros.
_SHORT_CODE = re.compile(r"([A-Za-z])(\d{1,3})")
#: A heading of a page below its title.
_HEADING = re.compile(r"^(?P<level>##+) (?P<title>.+)$", re.MULTILINE)
#: A term in bold letters.
_BOLD = re.compile(r"\*\*(.+?)\*\*")
#: An option's name in a heading, or in a line of other names.
_CODE = re.compile(r"`(.+?)`")
#: Facts that may bear a last name that is explained; of more, such as all that are called ``mean``, none is meant.
_ALIKE = 8
#: Other names of a page, below its title, or of a section, below its heading.
_ALSO = re.compile(r"\A#+ .+\n\n(?:Also called: (?P<names>.+(?:\n(?!\n).+)*))")


def explanation(code: str, rule_folders: Iterable[str | Path] = ()) -> str:
    """Manual page in Markdown; of a word that a page explains, the section that does.

    Raises:
        QuantmedicError: Nothing of that name is known; suggests the nearest, and pages on which the word stands.
    """
    base = load_rulebase(rule_folders)
    pages = load_manuals(base)
    wanted = code.strip()
    found = (
        _page_of_rule(wanted, base, pages) or _topic(wanted, pages) or _fact(wanted, base) or _threshold(wanted, base)
    )
    if found is None:
        found = _toolchain(wanted, base, pages) or _section(wanted, pages) or _remedy(wanted, base)
    found = found or _short_fact(wanted, base) or _page_of_rule(_plain(wanted), base, pages)
    found = found or _word(wanted, base, pages)
    if found is None:
        raise QuantmedicError(f"nothing is called {code!r}", help=_where_else(wanted, base, pages))
    return found


def _page_of_rule(wanted: str, base: RuleBase, pages: Mapping[str, str]) -> str | None:
    """The page of a rule that is called by its id, its name or its cause; rules of the same cause are named below."""
    rules = [rule for rule in base.rules if wanted.upper() == rule.id or wanted.lower() in (rule.name, rule.cause)]
    if not rules:
        return None
    # The rule that bears the name comes before others of that cause.
    first = min(rules, key=lambda rule: wanted.lower() not in (rule.id.lower(), rule.name))
    shared = explained_rules(pages[first.id])
    others = [rule for rule in base.rules if rule.cause == first.cause and rule.id not in (first.id, *shared)]
    if not others:
        return pages[first.id]
    links = ", ".join(f"[{rule.id}]({rule.id}.md) {rule.name}" for rule in others)
    said = fill(f"Other rules name `{first.cause}` too: {links}.", 120, break_on_hyphens=False)
    page = pages[first.id].rstrip()
    if wanted.lower() != first.cause:
        return f"{page}\n\n## The same cause\n\n{said}\n"
    # The word may come from the finding of any of them, and the reader has to know it before the page begins.
    title, _, rest = page.partition("\n")
    return f"{title}\n\n{said} This page is that of {first.id}.\n{rest}\n"


def _topic(wanted: str, pages: Mapping[str, str]) -> str | None:
    found = pages.get(wanted) or pages.get(f"general/{_plain(wanted)}") or pages.get(wanted.lower())
    return found or next((text for text in pages.values() if _is_named(wanted, _other_names(text))), None)


def _fact(wanted: str, base: RuleBase) -> str | None:
    facts = _facts()
    return _about_fact(wanted, *facts[wanted], base) if wanted in facts else None


def _short_fact(wanted: str, base: RuleBase) -> str | None:
    """Facts whose path ends so, with the fewest parts: reports show them within a part that is known there."""
    facts = _facts()
    ending = [path for path in facts if path.endswith(f".{wanted.casefold()}")]
    if not 0 < len(ending) <= _ALIKE:
        return None
    shortest = min(path.count(".") for path in ending)
    found = [path for path in ending if path.count(".") == shortest]
    return "\n".join(_about_fact(path, *facts[path], base) for path in found)


def _about_fact(path: str, scope: str, text: str, unit: str, base: RuleBase) -> str:
    missing = f"Where it is missing, what asks for it is not judged: {base.hint(path)}."
    return f"# {path}\n\n{text}\n\nScope: {scope}. Unit: {unit}.\n\n{missing}\n"


def _facts() -> dict[str, tuple[str, str, str]]:
    """Scope, description and unit of every fact by its path."""
    return {
        path: (scope, field.description or "", declared_unit(field) or "none")
        for scope in SCOPES
        for path, field in fact_paths(scope).items()
    }


def _threshold(wanted: str, base: RuleBase) -> str | None:
    known = base.thresholds.get(wanted)
    if known is None:
        return None
    unit = f" {known.unit}" if known.unit else ""
    return f"# {wanted}\n\n{known.description}\n\nValue: {known.value:g}{unit}. Source: {known.source}.\n"


def _toolchain(wanted: str, base: RuleBase, pages: Mapping[str, str]) -> str | None:
    """What is known of a toolchain: remedies that are written for it, and the general pages that speak of it."""
    known = next((own for own in base.toolchains if _is_named(wanted, (own.name, own.title, *own.names))), None)
    if known is None:
        return None
    remedies = (own.title for own in base.remedies.values() if any(s.toolchain == known.name for s in own.snippets))
    word = re.compile("|".join(rf"\b{re.escape(own)}\b" for own in (known.name, known.title)))
    named = [page for page in pages if page.startswith("general/") and word.search(pages[page])]
    named.sort(key=lambda page: page != f"general/{known.guide}")
    lines = [
        f"# {known.title}",
        f"Reports are written for it where the model carries its marks, or with `--toolchain {known.names[0]}`. "
        f"Its options were checked with {known.checked}.",
        "## Remedies that are written for it",
        "\n".join(f"* {title}" for title in sorted(remedies)) or "None yet.",
        "## Pages that speak of it",
        "\n".join(f"* [{_title_of(pages[page])}]({page}.md)" for page in named) or "None.",
    ]
    return "\n\n".join(lines) + "\n"


def _remedy(wanted: str, base: RuleBase) -> str | None:
    """What is known of a remedy, called by its key or title, or by the beginning of these."""
    known = [
        (key, own)
        for key, own in base.remedies.items()
        if any(f"{_plain(name)}-".startswith(f"{_plain(wanted)}-") for name in (key, own.title))
    ]
    if len(known) != 1:
        return None
    key, remedy = known[0]
    titles = {own.name: own.title for own in base.toolchains}
    written = dict.fromkeys(titles[own.toolchain] for own in remedy.snippets if own.toolchain in titles)
    rules = [f"* [{own.id}]({own.id}.md) {own.name}" for own in base.rules if key in own.remedies]
    lines = [
        f"# {remedy.title[:1].upper()}{remedy.title[1:]}",
        f"The remedy `{key}`: {remedy.changes}.",
        *([f"It costs {remedy.cost.says}."] if remedy.cost.says else []),
        *([f"Caution: {remedy.unsafe}."] if remedy.unsafe else []),
        "## Toolchains that it is written for",
        ", ".join(written) or "None: it is done to the model, the data or the application.",
        "## Rules that advise it",
        "\n".join(rules) or "None.",
    ]
    return "\n\n".join(lines) + "\n"


def _word(wanted: str, base: RuleBase, pages: Mapping[str, str]) -> str | None:
    """Where a word is used that has no page: an option of a toolchain, or a part of the names of rules."""
    word = _match_spellings(wanted)
    rules = [f"* [{own.id}]({own.id}.md) {own.name}" for own in base.rules if _plain(wanted) in own.name.split("-")]
    titles = {own.name: own.title for own in base.toolchains}
    setting = {
        f"* {remedy.title} ({titles.get(snippet.toolchain, snippet.toolchain)})": None
        for remedy in base.remedies.values()
        for snippet in remedy.snippets
        if word.search(snippet.code + repr(snippet.options))
    }
    links = [
        f"* [{_title_of(pages[page])}]({page}.md): {line}"
        for page in _general_first(pages)
        if (line := _line_with_code(word, pages[page]))
    ]
    if not (rules or setting or links):
        return None
    parts = {"Rules that are called so": rules, "Remedies that set it": list(setting), "Where the manual has it": links}
    lines = [f"# {wanted}", *(f"## {title}\n\n" + "\n".join(own) for title, own in parts.items() if own)]
    return "\n\n".join(lines) + "\n"


def _match_spellings(wanted: str) -> re.Pattern[str]:
    """The word in capitals or not, and with its parts joined in any way: fake_quantize, FakeQuantize."""
    parts = map(re.escape, re.split(r"[\s_-]+", wanted.strip("\"' ")))
    return re.compile(rf"(?<![\w-]){'[ _-]*'.join(parts)}(?![\w-])", re.IGNORECASE)


def _line_with_code(word: re.Pattern[str], page: str) -> str:
    """The first line of a page that has the word as code, without marks of lists and tables; empty where none has."""
    found = next((line for line in page.splitlines() if any(map(word.search, _CODE.findall(line)))), "")
    return " ".join(part.strip() for part in found.lstrip("#* ").split("|") if part.strip())


def _general_first(pages: Mapping[str, str]) -> list[str]:
    """Pages about a subject before those of rules, which only touch it."""
    return sorted(pages, key=lambda name: name != "index" and not name.startswith("general/"))


def _title_of(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _section(wanted: str, pages: Mapping[str, str]) -> str | None:
    """The section that explains a word: of the index, which may hold it in a term, or of the page whose term it is."""
    word = re.compile(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", re.IGNORECASE)
    sections = list(_sections(pages))
    of_index = [each for each in sections if each[0] == "index"]
    tried = (
        (of_index, lambda section: any(map(word.search, _headings_of(section)))),
        (of_index, lambda section: any(map(word.search, _BOLD.findall(section)))),
        (sections, lambda section: _is_named(wanted, _names_of(section))),
        (sections, lambda section: _is_named(wanted, _BOLD.findall(section))),
    )
    for candidates, explains in tried:
        for page, section in candidates:
            if explains(section):
                topic = page.removeprefix("general/")
                return f"{section.rstrip()}\n\nThis is a part of the page `{topic}`: quantmedic explain {topic}\n"
    return None


def _is_named(wanted: str, names: Iterable[str]) -> bool:
    """One of the names is the word, whether its parts are joined by spaces, hyphens or underscores."""
    return _plain(wanted) in map(_plain, names)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().rstrip(".").casefold())


def _names_of(section: str) -> list[str]:
    """What a section is called: its heading, what stands in front of a colon there, and options that it names."""
    return [
        name
        for heading in _headings_of(section)
        for name in (heading, heading.partition(":")[0], *_CODE.findall(heading))
    ] + _other_names(section)


def _other_names(text: str) -> list[str]:
    """The names that a page or a section lists below its heading."""
    found = _ALSO.match(text)
    return [name.strip("` \n") for name in found["names"].split(",")] if found else []


def _headings_of(section: str) -> list[str]:
    """The heading of a section, without those of its own sections."""
    found = _HEADING.match(section)
    return [found["title"]] if found else []


def _sections(pages: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Sections of the general pages with the name of the page; smaller ones before those that hold them."""
    for page in ["index", *(page for page in pages if page.startswith("general/"))]:
        text = pages[page]
        headings = sorted(_HEADING.finditer(text), key=lambda heading: -len(heading["level"]))
        for heading in headings:
            level = len(heading["level"])
            ends = (h.start() for h in _HEADING.finditer(text, heading.end()) if len(h["level"]) <= level)
            yield page, text[heading.start() : next(ends, len(text))]


def _where_else(wanted: str, base: RuleBase, pages: Mapping[str, str]) -> str:
    """The nearest names, and the general pages on which the word stands."""
    topics = [name.removeprefix("general/") for name in pages]
    of_rules = [name for rule in base.rules for name in (rule.id, rule.name, rule.cause)]
    near = difflib.get_close_matches(
        wanted, list(dict.fromkeys([*of_rules, *topics, *_facts(), *base.thresholds])), n=3
    )
    if (code := _SHORT_CODE.fullmatch(wanted)) and (whole := f"{code[1].upper()}{int(code[2]):03}") in of_rules:
        near = [whole, *(name for name in near if name != whole)]
    word = _match_spellings(wanted)
    on = [name.removeprefix("general/") for name in _general_first(pages) if word.search(pages[name])][:5]
    said = [f"did you mean {', '.join(near)}?"] if near else []
    said += [f"{'The word also stands' if near else 'the word stands'} on the pages {', '.join(on)}"] if on else []
    return " ".join(said) or "quantmedic explain index lists all pages, quantmedic explain --list rules the rules"
