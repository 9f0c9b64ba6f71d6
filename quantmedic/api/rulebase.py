"""The rules in force with their thresholds and manual pages: the built-in ones, and the user's beside them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from quantmedic.api.options import RuleOptions
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.errors import RuleError
from quantmedic.engine.input_files import leads_out
from quantmedic.engine.rules.examples import explained_rules, read_page
from quantmedic.engine.rules.load import load_rules
from quantmedic.engine.rules.log_patterns import LogPattern
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.yaml_files import read_yaml
from quantmedic.engine.yaml_text import NotYaml, parse_yaml


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


#: XQuant's single numbers under our names.
_XQUANT = {
    "threshold_degrade_layer_ratio": "degrade_layer_ratio",
    "threshold_zscore_outlier_removal": "activation_zscore",
    "threshold_ratio_unbalanced_concatenation": "unbalanced_concatenation_ratio",
    "threshold_bitwidth_mixed_precision_with_model_output_loss_objective": "last_layer_bits",
}


def _linear_sqnr(value: float) -> dict[str, float]:
    """XQuant's SQNR is a ratio of powers; below it, a layer is degraded."""
    if not value > 0:
        raise RuleError(f"sqnr must be a positive ratio, not {value!r}", where="threshold_quantize_error")
    return {"quantize_error_sqnr_db": to_decibels(value), "quantize_error_nmse": 1.0 / value}


#: XQuant's ``threshold_quantize_error`` by metric.
_XQUANT_ERRORS: Mapping[str, Callable[[float], dict[str, float]]] = {
    "mse": lambda value: {"quantize_error_mse": value},
    "cs": lambda value: {"quantize_error_cosine": value},
    "sqnr": _linear_sqnr,
}


def apply_thresholds(base: RuleBase, options: Sequence[str]) -> RuleBase:
    """Override thresholds from YAML files, then from ``NAME=VALUE`` options.

    Raises:
        RuleError: A file cannot be read, an option is neither, or a name or value is unknown.
    """
    for file in (Path(text) for text in options if "=" not in text):
        values = read_yaml(file)
        if not isinstance(values, dict):
            raise RuleError("a threshold file holds one mapping of names to numbers", where=str(file))
        base = base.with_thresholds(translate(values), str(file.name))
    return base.with_thresholds(
        translate(dict(_parse_threshold(text) for text in options if "=" in text)), "command line"
    )


def rules_in_force(options: RuleOptions) -> RuleBase:
    """The rules that a run judges by: the user's and thresholds beside ours, and which of them are judged.

    Raises:
        RuleError: A rule cannot be used, a threshold is unknown, or nothing has a name that was selected or ignored.
    """
    base = apply_thresholds(load_rulebase(options.folders), options.thresholds)
    return base.choose(options.select, options.ignore)


def translate(values: Mapping[str, object]) -> dict[str, object]:
    """Our threshold names for a mapping that may use XQuant's."""
    translated: dict[str, object] = {}
    for name, value in values.items():
        if name == "threshold_quantize_error":
            translated |= _quantize_errors(value)
        else:
            translated[_XQUANT.get(name, name)] = value
    return translated


def _quantize_errors(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise RuleError("threshold_quantize_error is a mapping with the keys mse, cs, sqnr", where=repr(value))
    translated: dict[str, float] = {}
    for metric, number in value.items():
        if metric not in _XQUANT_ERRORS or not isinstance(number, int | float):
            raise RuleError(
                "threshold_quantize_error knows the numbers mse, cs and sqnr", where=f"{metric}: {number!r}"
            )
        translated |= _XQUANT_ERRORS[metric](float(number))
    return translated


def _parse_threshold(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), parse_yaml(value, f"--threshold {name.strip()}")
    except NotYaml as error:
        raise RuleError(f"not a number: {value[:80]!r}", where=f"--threshold {name.strip()}") from error
