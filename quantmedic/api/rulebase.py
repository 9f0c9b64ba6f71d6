"""The rules in force and their manual pages: the built-in ones, and the user's beside them."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from quantmedic.engine.errors import RuleError
from quantmedic.engine.input_files import leads_out
from quantmedic.engine.rules.examples import explained_rules, read_page
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.log_patterns import LogPattern
from quantmedic.engine.rules.rulebase import RuleBase


def load_rulebase(folders: Iterable[str | Path] = ()) -> RuleBase:
    """The built-in rules, and those of the user's folders beside them.

    Raises:
        RuleError: A rule cannot be used; names file, line and the nearest known name.
    """
    own = [Path(folder) for folder in folders]
    require_own_files(own)
    return load_rules([rule_folder(), *own]) if own else _built_in_rules()


def require_own_files(folders: Iterable[Path]) -> None:
    """Refuse links out of folders of rules: what rules and pages say stands in reports, which others read.

    Raises:
        RuleError: Names the link.
    """
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".yaml", ".md") and leads_out(path, folder):
                raise RuleError(
                    "a file among the rules is a link out of their folder",
                    where=str(path),
                    help="put the file itself there",
                )


@cache
def _built_in_rules() -> RuleBase:
    """Read once per process: more than a hundred files, which do not change."""
    return load_rules([rule_folder()])


def known_and_own_patterns(base: RuleBase) -> tuple[Sequence[LogPattern], Sequence[LogPattern]]:
    """Patterns of logs: the built-in ones, which end soon on every line, and those of the user's folders."""
    known = _built_in_rules().logs
    return (known, base.logs[len(known) :]) if base.logs[: len(known)] == known else ((), base.logs)


def rule_folder() -> Path:
    """Folder of the built-in rules."""
    return _data_folder("rules")


def load_manuals(rules: RuleBase) -> dict[str, str]:
    """Manual pages by rule id, general pages as ``general/NAME``; a user's page lies beside its rule.

    Rules of one cause may share a page: its title lists them, and each id leads to it.

    A rule without a page gets a short one from its own words; the page ``index`` lists all.
    """
    folder = _data_folder("manuals")
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    pages |= {code: text for text in [*pages.values()] for code in explained_rules(text)}
    pages |= {
        f"general/{path.stem}": path.read_text(encoding="utf-8") for path in sorted((folder / "general").glob("*.md"))
    }
    for rule in rules.rules:
        beside = rule.path.with_suffix(".md") if rule.path is not None else None
        if beside is not None and beside.is_file():
            pages[rule.id] = read_page(beside)
        elif rule.id not in pages:
            remedies = "\n".join(f"- {rules.remedies[name].title}" for name in rule.remedies)
            pages[rule.id] = f"# {rule.name} ({rule.id})\n\n{rule.message}\n\n## Fix\n\n{remedies}\n"
    pages["index"] += _page_list(rules, pages)
    return pages


def _page_list(rules: RuleBase, pages: Mapping[str, str]) -> str:
    """Links to all pages: those of rules by family, the general ones with their titles."""
    families: dict[str, list[str]] = {}
    for rule in rules.rules:
        cause = "" if rule.cause == rule.name else f" (cause {rule.cause})"
        families.setdefault(rule.family, []).append(f"[{rule.id}]({rule.id}.md) {rule.name}{cause}")
    lines = [f"* **{family.capitalize()}**: {', '.join(links)}" for family, links in families.items()]
    general = [page for page in pages if page.startswith("general/")]
    lines += [f"* [{pages[page].partition(chr(10))[0].removeprefix('# ')}]({page}.md)" for page in general]
    return "\n" + "\n".join(lines) + "\n"


def _data_folder(name: str) -> Path:
    return Path(str(files(f"quantmedic.{name}")))
