"""What a configuration says is quantized, and how, against the tensors of its checkpoint.

Names in the configuration are those of modules. Loaders put ``model.`` and the like before names or take it away, so
that a name counts as meant with and without it.

Patterns are those of a stranger, whose regular expression may run for years: one whose repetitions are nested, or more
than a few, is not matched, and nothing is said of it.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, config_groups, integer_or_none
from quantmedic.collectors.from_checkpoint.tensor_roles import role_of

#: Repetitions without an end in one expression, and the characters of a name that are looked at.
_MOST_REPEATS, _MOST_CHARACTERS = 3, 300
_MOST_LENGTH = 500
#: A class of modules by its name, such as Linear.
_CLASS = re.compile(r"[A-Z]\w*", re.ASCII)
_REPEATS = re.compile(r"[*+]|\{\d*,\d*\}")
#: What no nested repetition can do without: a repetition behind a group that holds one, or behind another.
_NESTED = re.compile(r"[*+?}][*+{]|\)[*+{]|\\\d|\(\?P=")


@dataclass(frozen=True)
class NamePattern:
    """How a configuration names modules.

    Attributes:
        text: As it stands there.
        matches: Tells whether it means a name; None where that is not decided by names, or not safely.
        is_name: It means the module of this very name.
    """

    text: str
    matches: Callable[[str], bool] | None
    is_name: bool = False


def exact_or_regex(text: str) -> NamePattern:
    """As compressed-tensors reads it: ``re:`` and a regular expression, the name of a class, or a name."""
    if text.startswith("re:"):
        return NamePattern(text, expression(text.removeprefix("re:")))
    if _CLASS.fullmatch(text):
        return NamePattern(text, None)
    return NamePattern(text, lambda name: name == text, is_name=True)


@cache
def expression(text: str) -> Callable[[str], bool] | None:
    """Matches the beginning of names; None where the expression is wrong or could take too long."""
    if len(text) > _MOST_LENGTH or len(_REPEATS.findall(text)) > _MOST_REPEATS or _NESTED.search(text):
        return None
    try:
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return None
    return lambda name: compiled.match(name[:_MOST_CHARACTERS]) is not None


_PREFIXES = ("model.", "language_model.", "model.language_model.")


def part_of_name(text: str) -> NamePattern:
    """As AutoAWQ and transformers read it: a name that holds it."""
    return NamePattern(text, lambda name: text in name)


def wildcard(text: str) -> NamePattern:
    """As ModelOpt reads it: a name with stars, or the beginning of one."""
    return NamePattern(text, lambda name: fnmatchcase(name, text) or name.startswith(f"{text}."))


#: Lists of modules that stay in float, by the key of the configuration, and how its entries are read.
_IGNORES: Mapping[str, Callable[[str], NamePattern]] = {
    "ignore": exact_or_regex,
    "modules_to_not_convert": part_of_name,
    "llm_int8_skip_modules": part_of_name,
    "exclude_modules": wildcard,
}
#: Named wherever nothing else is known, whether or not there is one.
_USUAL = frozenset(("lm_head", "re:.*lm_head", "re:lm_head", "*lm_head*", "visual", "vision_tower"))
#: More patterns than this are not looked at, other than names.
_MOST_PATTERNS = 200
#: What the class Linear stands for among the roles of weights; routers are often no such modules.
_LINEAR = frozenset(("attention", "mlp", "expert"))


@dataclass(frozen=True)
class Scheme:
    """How some modules are to be stored; None where it says nothing."""

    pattern: NamePattern
    bits: int | None = None
    group_size: int | None = None


@dataclass(frozen=True)
class Declared:
    """What a configuration says of modules.

    Attributes:
        ignores: Modules that stay in float.
        schemes: Modules that are quantized, the most specific first.
        is_complete: All modules of the class Linear are quantized that it does not leave out.
    """

    ignores: Sequence[NamePattern] = ()
    schemes: Sequence[Scheme] = ()
    is_complete: bool = False


def read_declared(settings: Mapping[str, object]) -> Declared:
    """What a configuration of GPTQ, AWQ, compressed-tensors, ModelOpt, bitsandbytes or float8 says of modules."""
    ignores = [read(text) for key, read in _IGNORES.items() for text in _texts_in(settings.get(key))]
    schemes: list[Scheme] = []
    dynamic = settings.get("dynamic")
    for key, values in dynamic.items() if isinstance(dynamic, Mapping) else ():
        text = str(key)  # a regular expression, behind a sign
        pattern = NamePattern(text, expression(text.removeprefix("-:").removeprefix("+:")))
        if text.startswith("-:"):
            ignores.append(pattern)
        elif isinstance(values, Mapping):
            schemes.append(
                Scheme(pattern, integer_or_none(values.get("bits")), integer_or_none(values.get("group_size")))
            )
    for group in (config_groups(settings) or {}).values():
        schemes += _schemes_of_group(group)
    is_complete = any(scheme.pattern.text == "Linear" for scheme in schemes)
    return Declared(ignores, sorted(schemes, key=_rank), is_complete)


def departures(
    said: Declared, layers: Mapping[str, PackedLayer], floats: Collection[str], modules: Collection[str]
) -> dict[str, list[str]]:
    """Where the tensors depart from what is declared, by the field of ``CheckpointFacts`` that counts it.

    Args:
        said: What the configuration says.
        layers: Quantized layers by the name of their module.
        floats: Modules whose matrices are stored in float.
        modules: All modules, those that hold others among them.
    """
    ignored, named = NamedModules(said.ignores), NamedModules([scheme.pattern for scheme in said.schemes])
    schemes = {scheme.pattern.text: scheme for scheme in reversed(said.schemes)}
    spelled = {each for name in modules for each in _spellings(name)} if layers else set()
    quantized, unmet, left = list[str](), list[str](), list[str]()
    for name, layer in layers.items():
        pattern = named.first(name)
        scheme = schemes[pattern.text] if pattern is not None else None
        if scheme is None and ignored.first(name) is not None:
            quantized.append(name)
        elif not _is_met(scheme, layer):
            unmet.append(name)
    if layers and said.is_complete and ignored.is_known:
        left = [name for name in floats if role_of(f"{name}.weight") in _LINEAR and ignored.first(name) is None]
    return {
        "idle_targets": named.idle(spelled) if layers else [],
        "idle_ignores": ignored.idle(spelled) if layers else [],
        "declared_float": quantized,
        "declared_quantized": left,
        "unmet_overrides": unmet,
    }


class NamedModules:
    """Patterns by which modules are looked up: names at once, others one after the other."""

    def __init__(self, patterns: Sequence[NamePattern]) -> None:
        self._exact = {pattern.text: pattern for pattern in patterns if pattern.is_name}
        others = dict.fromkeys(pattern for pattern in patterns if not pattern.is_name)
        self._others = [pattern for pattern in others if pattern.matches is not None][:_MOST_PATTERNS]
        self.is_known = len(self._others) == len(others)

    def first(self, name: str) -> NamePattern | None:
        """The first pattern that means a module, names before others."""
        spelled = _spellings(name)
        exact = next((self._exact[each] for each in spelled if each in self._exact), None)
        if exact is not None:
            return exact
        return next((p for p in self._others if p.matches is not None and any(map(p.matches, spelled))), None)

    def idle(self, spelled: Collection[str]) -> list[str]:
        """Patterns that mean none of the modules, spelled in each way; usual ones are left out."""
        texts = [text for text in self._exact if text not in spelled]
        texts += [p.text for p in self._others if p.matches is not None and not any(map(p.matches, spelled))]
        return [text for text in texts if text.rstrip("$") not in _USUAL]


def modules_of(names: Iterable[str]) -> set[str]:
    """All modules that hold tensors of these names, and those that hold these."""
    found: set[str] = set()
    for name in names:
        parent = name.rpartition(".")[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition(".")[0]
    return found


def _is_met(scheme: Scheme | None, layer: PackedLayer) -> bool:
    if scheme is None:
        return True
    size = scheme.group_size
    fits_size = size is None or size <= 0 or layer.groups == 1 or layer.group_size == size
    return fits_size and (scheme.bits is None or scheme.bits == layer.bits)


def _spellings(name: str) -> list[str]:
    """A name with and without what loaders put before it."""
    bare = name
    for prefix in sorted(_PREFIXES, key=len, reverse=True):
        bare = bare.removeprefix(prefix)
    return [name, bare, *(prefix + bare for prefix in _PREFIXES)]


def _schemes_of_group(group: Mapping[str, object]) -> list[Scheme]:
    """Schemes of a group of compressed-tensors; none where its weights stay in float."""
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return []
    is_integer = weights.get("type", "int") == "int"
    bits, size = (integer_or_none(weights.get(key)) if is_integer else None for key in ("num_bits", "group_size"))
    return [Scheme(exact_or_regex(text), bits, size) for text in _texts_in(group.get("targets"))]


def _rank(scheme: Scheme) -> int:
    """Names before expressions before classes."""
    text = scheme.pattern.text
    return 2 if scheme.pattern.matches is None else 1 if text.startswith("re:") else 0


def _texts_in(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
