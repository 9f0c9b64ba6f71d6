"""The policy file of ``quantmedic check``: how it is found, read, and applied to the rules."""

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from quantmedic.api.rulebase import translate
from quantmedic.engine.errors import PolicyError, RuleError
from quantmedic.engine.gate.policy import Policy, PolicyFile
from quantmedic.engine.input_files import leads_out, require_regular
from quantmedic.engine.reading_limits import POLICY_BYTES, POLICY_DEPTH, beyond_readers
from quantmedic.engine.rules.rule import matches
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.text import visible
from quantmedic.store.policy_mistakes import (
    EXPLAIN,
    POLICY_NAME,
    TABLE,
    Mistake,
    dotted_name,
    in_quotes,
    place,
    refusal,
    refuse,
    unknown_rule,
    validation_mistakes,
    wrong_budgets,
    wrong_thresholds,
)
from quantmedic.store.toml_lines import Key, key_lines, too_deep

PYPROJECT = "pyproject.toml"
_MENTION = re.compile(r"""tool["']?\s*\.\s*["']?quantmedic""")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def find_policy(start: Path) -> Path | None:
    """The policy in force in a folder: the nearest upward, as far as the root of the file system.

    A folder has one where it holds a ``quantmedic.toml``, else a ``pyproject.toml`` with a table ``[tool.quantmedic]``.
    A ``pyproject.toml`` that is not TOML counts where it mentions that table, so that `load_policy` refuses it.

    Raises:
        PolicyError: A ``pyproject.toml`` on the way cannot be read, or the policy stands in a folder above that others
            than the user and root may write.
    """
    folder = Path(os.path.realpath(start))
    for above in (folder, *folder.parents):
        # A broken link counts, too: a policy that cannot be read must not be ignored.
        if os.path.lexists(above / POLICY_NAME):
            return _require_trusted(above / POLICY_NAME, folder)
        if os.path.isfile(above / PYPROJECT) and _holds_policy(above / PYPROJECT):
            return _require_trusted(above / PYPROJECT, folder)
    return None


def _require_trusted(policy: Path, start: Path) -> Path:
    """A policy of the folder where the user is, or one above that no stranger put there; no link to another file."""
    if policy.exists() and leads_out(policy, policy.parent):
        raise PolicyError(
            "the policy that was found is a link out of its folder",
            where=place(policy),
            help="name it with --config FILE, or put the file itself there",
        )
    for each in (policy.parent, policy) if policy.parent != start else ():
        if why := _distrust(each):
            raise PolicyError(
                "the policy found in a folder above may be somebody else's",
                where=[place(policy), f"{place(each)}  {why}"],
                help="if you trust it, name it with --config FILE; else write one in the current folder",
            )
    return policy


def _distrust(path: Path) -> str | None:
    """Why somebody else may have written a file, or put it into a folder; None where only the user and root can."""
    if not hasattr(os, "getuid"):
        return None
    try:
        found = path.stat()
    except OSError:
        return None  # what cannot be read is refused where it is read
    # As git does: who runs a command by sudo trusts his own files.
    trusted = {0, os.getuid()} | {int(user) for user in [os.environ.get("SUDO_UID", "")] if user.isdecimal()}
    if found.st_uid not in trusted:
        return f"belongs to user {found.st_uid}"
    # In a folder such as /tmp nobody can replace what is another's.
    is_guarded = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return "can be written by every user" if found.st_mode & stat.S_IWOTH and not is_guarded else None


def load_policy(path: Path) -> PolicyFile:
    """Read a policy: a whole TOML file, or ``[tool.quantmedic]`` of one that is called ``pyproject.toml``.

    Raises:
        PolicyError: It cannot be read, is not TOML, or has keys or values that a policy cannot have; names the line of
            every mistake.
    """
    text = _policy_text(path)
    table: object = _parse_toml(path, text)
    inside: Key = TABLE if path.name == PYPROJECT else ()
    for name in inside:
        table = table.get(name) if isinstance(table, Mapping) else None
    if table is None:
        raise PolicyError(
            "there is no policy in this file",
            where=place(path),
            help=f"add a table [{dotted_name(TABLE)}], or write a {POLICY_NAME}",
        )
    found = key_lines(text)
    lines = {dotted_name(key[len(inside) :]): line for key, line in found.items() if key[: len(inside)] == inside}
    file = PolicyFile(path=path, lines=lines)
    if not isinstance(table, Mapping):
        raise refusal(file, [Mistake((), f"{dotted_name(TABLE)} must be a table")])
    try:
        file = PolicyFile(Policy.model_validate(_strict_values(table), strict=True), path, lines)
    except ValidationError as error:
        raise refusal(file, chain(validation_mistakes(error), wrong_thresholds(table.get("thresholds")))) from error
    refuse(file, chain(wrong_thresholds(file.policy.thresholds), wrong_budgets(file)))
    return file


def policy_folders(file: PolicyFile) -> list[Path]:
    """Folders of the user's own rules, for `load_rulebase`.

    Raises:
        PolicyError: One is no folder, or lies outside that of the policy: who may write a policy must not choose which
            files of the machine are read, and shown in reports.
    """
    names = file.policy.rules.folders
    folders = [file.beside(name) for name in names]
    missing = (
        Mistake(("rules", "folders", number), f"no such rule folder: {in_quotes(names[number])}")
        for number, folder in enumerate(folders)
        if not folder.is_dir()
    )
    refuse(file, missing, help="folders of rules are looked up from the folder of the policy")
    outside = (
        Mistake(("rules", "folders", number), f"a rule folder outside that of the policy: {in_quotes(names[number])}")
        for number, folder in enumerate(folders)
        if file.path is not None and leads_out(folder, file.path.parent)
    )
    refuse(file, outside, help="name other folders on the command line: --rules FOLDER")
    return folders


def apply_policy(base: RuleBase, file: PolicyFile) -> RuleBase:
    """The rules that a policy selects, with its thresholds.

    Raises:
        PolicyError: A rule that the policy names does not exist, or is to fail and is left out at once; a threshold
            does not exist or cannot have this value.
    """
    choice = file.policy.rules
    unknown = chain(_unknown_rules(base, file.policy), _refused_thresholds(base, file.policy.thresholds))
    refuse(file, unknown, help="list them: quantmedic explain --list rules, or quantmedic explain --list thresholds")
    chosen = base.choose(choice.select, choice.ignore)
    idle = (
        Mistake(("check", "fail_on", "rules", number), f"{in_quotes(rule)} is to fail, but [rules] leaves it out")
        for number, rule in enumerate(file.policy.check.fail_on.rules)
        if not any(matches(each, rule) for each in chosen.rules)
    )
    refuse(file, idle)
    origin = file.path.name if file.path is not None else POLICY_NAME
    return chosen.with_thresholds(translate(file.policy.thresholds), origin)


def _unknown_rules(base: RuleBase, policy: Policy) -> Iterator[Mistake]:
    named: list[tuple[Key, str]] = [
        *((("rules", "select", number), rule) for number, rule in enumerate(policy.rules.select)),
        *((("rules", "ignore", number), rule) for number, rule in enumerate(policy.rules.ignore)),
        *((("check", "fail_on", "rules", number), rule) for number, rule in enumerate(policy.check.fail_on.rules)),
        *((("ignore", number, "rule"), exemption.rule) for number, exemption in enumerate(policy.ignore)),
    ]
    for key, selector in named:
        if not any(matches(rule, selector) for rule in base.rules):
            yield Mistake(key, unknown_rule(selector, base))


def _refused_thresholds(base: RuleBase, thresholds: Mapping[str, object]) -> Iterator[Mistake]:
    for name, value in thresholds.items():
        try:
            base.with_thresholds(translate({name: value}), "")
        except RuleError as error:
            yield Mistake(("thresholds", name), visible(error.message, 200))


def _holds_policy(path: Path) -> bool:
    raw = _policy_bytes(path)
    text = raw.decode("utf-8", errors="replace")
    if "quantmedic" not in text:
        return False
    if len(raw) <= POLICY_BYTES.in_force and not too_deep(text):
        try:
            tool = tomllib.loads(text).get("tool")
        except (ValueError, RecursionError):
            pass  # not valid TOML: whether it mentions the table decides
        else:
            return isinstance(tool, Mapping) and "quantmedic" in tool
    return bool(_MENTION.search(text))


def _policy_bytes(path: Path) -> bytes:
    """The file, or a little more of it than a policy may have."""
    try:
        if str(path) != os.devnull:  # an empty policy, as other tools take it
            require_regular(path)
        with path.open("rb") as stream:
            return stream.read(POLICY_BYTES.in_force + 1)
    except IsADirectoryError as error:
        help = f"name the file in it: --config {POLICY_NAME}"
        raise PolicyError("the policy is a folder", where=place(path), help=help) from error
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        help = "name another one with --config FILE"
        raise PolicyError("the policy cannot be read", where=f"{place(path)}: {cause}", help=help) from error


def _policy_text(path: Path) -> str:
    raw = _policy_bytes(path)
    if len(raw) > POLICY_BYTES.in_force:
        raise POLICY_BYTES.error_for(place(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise PolicyError("the policy is not UTF-8 text", where=place(path, line), help="save it as UTF-8") from error


def _parse_toml(path: Path, text: str) -> dict[str, object]:
    if line := too_deep(text):
        raise POLICY_DEPTH.error_for(place(path, line))
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise beyond_readers(place(path)) from error
    except ValueError as error:
        what, _, at = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", at)
        line = int(found[1]) if found else text.count("\n") + 1 if at else None
        # A link of a stranger may lead to a file of this machine that is nobody's to show.
        source = visible(text.split("\n")[line - 1].strip(), 80) if line and not path.is_symlink() else ""
        where = f"{place(path, line)}: {source}" if source else place(path, line)
        raise PolicyError(f"the policy is not TOML: {_plain_cause(what)}", where=where, help=EXPLAIN) from error


def _plain_cause(what: str) -> str:
    """What tomllib says, without Python's words."""
    if re.match(r"Cannot (declare .* twice|overwrite|mutate)", what):
        return "a table or key is given twice"
    if "digits" in what:
        return "a number has too many digits"
    return visible(what[:1].lower() + what[1:], 120)


def _strict_values(table: Mapping[str, object]) -> dict[str, object]:
    """The table as the strict model takes it: lists as tuples, quoted dates as dates."""
    whole = {name: _with_tuples(value) for name, value in table.items()}
    exemptions = whole.get("ignore")
    for exemption in exemptions if isinstance(exemptions, tuple) else ():
        if isinstance(exemption, dict) and "expires" in exemption:
            exemption["expires"] = _as_date(exemption["expires"])
    return whole


def _with_tuples(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _as_date(value: object) -> object:
    if not isinstance(value, str) or not _ISO_DATE.fullmatch(value):
        return value
    try:
        return date.fromisoformat(value)
    except ValueError:
        return value
