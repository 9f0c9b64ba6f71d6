"""Pages of the manual, each at a stable address: ``rules/W001``, ``manual/proof``."""

import re
from collections.abc import Mapping
from posixpath import dirname, join, normpath, relpath

from docs.markdown import Page, anchor_of
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.manual import glossary_page

_LINK = re.compile(r"\]\((?P<path>[^)#:\s]*\.md)(?P<anchor>#[^)]*)?\)")


def manual_pages(rules: RuleBase, manuals: Mapping[str, str]) -> dict[str, Page]:
    """All pages of the manual by their path in the site, and the glossary of facts."""
    known = {rule.id: rule for rule in rules.rules}
    found = {}
    for page, text in manuals.items():
        rule = known.get(page)
        moved = _with_links(text, page)
        shown = _with_facts_of_rule(moved, rule, rules) if rule is not None else moved
        found[place_of(page)] = Page(shown, "Rules" if rule is not None else "Manual")
    return found | {"glossary.md": Page(glossary_page(rules), "Reference")}


def place_of(page: str) -> str:
    """Path in the site of a page of the manual: ``W001``, ``general/proof`` or ``index``."""
    if page == "index":
        return "manual/index.md"
    return f"manual/{page.removeprefix('general/')}.md" if page.startswith("general/") else f"rules/{page}.md"


def _with_links(text: str, page: str) -> str:
    """Links from page to page as they lie in the site."""

    def moved(link: re.Match[str]) -> str:
        target = normpath(join(dirname(page), link["path"])).removesuffix(".md")
        return f"]({relpath(place_of(target), dirname(place_of(page)))}{link['anchor'] or ''})"

    return _LINK.sub(moved, text)


def _with_facts_of_rule(text: str, rule: Rule, rules: RuleBase) -> str:
    """What the rule itself states, below the title of its page."""
    remedies = (rules.remedies[name] for name in rule.remedies)
    links = ", ".join(f"[{remedy.title}](../remedies.md#{anchor_of(remedy.title)})" for remedy in remedies)
    said = [
        f"Asked of each {rule.scope}." if rule.scope != "model" else "Asked of the model.",
        f"Severity before a repair is tried: {rule.severity}. Family: {rule.family}.",
        f"Cause: [{rule.cause}](../causes.md#{anchor_of(rule.cause)}).",
        f"Remedies: {links}." if links else "",
    ]
    title, _, rest = text.partition("\n")
    body, mark, references = rest.partition("\n## References\n")
    facts = "\n## The rule itself\n\n" + "\n".join(f"* {line}" for line in said if line) + "\n"
    return f"{title}\n{body}{facts}{mark}{references}"
