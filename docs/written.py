"""Pages that are written by hand: what stands for a rule there is filled in from the rule and its page."""

import re
from collections.abc import Mapping
from pathlib import Path
from posixpath import relpath

from docs.markdown import Page, first_sentence
from quantmedic.engine.rules.rulebase import RuleBase

#: A rule on a line of its own gets a link and what its page says first; in a sentence only the link.
_ENTRY = re.compile(r"^\* (?P<id>[A-Z]\d{3})$", re.MULTILINE)
_MENTION = re.compile(r"(?<![\w/`\[])[ADFGMRSW]\d{3}(?![\w\]`]|\.\w)")


def written_pages(folder: Path, rules: RuleBase, manuals: Mapping[str, str]) -> dict[str, Page]:
    """The pages of a folder by path."""
    names = {rule.id: rule.name for rule in rules.rules}
    found = {}
    for path in sorted(folder.rglob("*.md")):
        place = path.relative_to(folder).as_posix()
        text = _with_rules(path.read_text(encoding="utf-8"), place, names, manuals)
        found[place] = Page(text, "Guides" if place.startswith("guides/") else "Start")
    return found


def _with_rules(text: str, place: str, names: Mapping[str, str], manuals: Mapping[str, str]) -> str:
    def link(rule: str, shown: str) -> str:
        if rule not in names:
            raise SystemExit(f"error: docs/pages/{place} names the rule {rule}, which does not exist")
        return f"[{shown}]({relpath(f'rules/{rule}.md', place.rpartition('/')[0] or '.')})"

    def entry(match: re.Match[str]) -> str:
        rule = match["id"]
        return f"* {link(rule, f'{rule} {names.get(rule)}')}: {first_sentence(manuals[rule])}"

    parts = re.split(r"(^```.*?^```$)", _ENTRY.sub(entry, text), flags=re.MULTILINE | re.DOTALL)
    for at in range(0, len(parts), 2):
        parts[at] = _MENTION.sub(lambda match: link(match[0], match[0]), parts[at])
    return "".join(parts)
