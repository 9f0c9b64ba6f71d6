"""``config_groups`` of compressed-tensors with one thing changed: what the configuration of a checkpoint says is kept.

A layer belongs to the group that names it, else to the one with a pattern for it, else to the one with its class: so
compressed-tensors looks it up, wherever a group stands (``match_targets``).
"""

import re
from collections.abc import Callable, Collection, Mapping

from quantmedic.engine.case.facts import CaseFacts

#: Least weights that share a scale: compressed-tensors takes any, its kernels 16; those of GPTQ and AWQ take 32.
LEAST_PACKED, LEAST_GROUP = 16, 32
#: Groups for weights that have one scale per channel, as all presets of 4 bits have them.
FIRST_GROUP = 128
#: Bits that named layers get.
MORE_BITS = 8
#: Sign of compressed-tensors before a pattern, and the class of the layers that hold the weights.
PATTERN, _CLASS = "re:", "Linear"
#: What scales per token have no use for; a call takes None for what is not set.
_OF_GROUPS = ("group_size", "block_structure", "scale_dtype")

Group = Mapping[str, object]
Groups = Mapping[str, Group]


def group_fields(facts: CaseFacts, layers: Collection[str], declared: Mapping[str, object]) -> dict[str, object]:
    """Fields of snippets by name; None where nothing is known, or nothing can be changed.

    Args:
        facts: The case.
        layers: Names of the layers that a remedy is for.
        declared: ``config_groups`` of the configuration of the checkpoint; empty where it has none.
    """
    groups: Groups = {name: group for name, group in declared.items() if isinstance(group, Mapping)}
    kind = _kind_of_input(facts)
    sizes = [size for layer in facts.layers if (size := layer.weight.group_size) is not None]
    first = FIRST_GROUP if facts.model.checkpoint.declared_group_size == -1 else None
    of_kind = f"{PATTERN}.*{re.escape(kind)}$" if kind is not None else None
    return {
        "smaller_group": _smaller(max(sizes), LEAST_GROUP) if sizes else first,
        "finer_groups": _each_weight(groups, _finer),
        "zero_point_groups": _each_weight(groups, _with_zero_points),
        "wider_groups": _split(groups, [*layers], _with_more_bits, "weights"),
        "token_groups": _of_tokens(groups),
        "open_groups": _split(groups, [of_kind], lambda own: None, "input_activations") if of_kind else None,
        "input_layers": (of_kind,) if of_kind else None,
        "input_quantizers": (f"*{kind}.input_quantizer",) if kind is not None else None,
    }


def _kind_of_input(facts: CaseFacts) -> str | None:
    """The layer whose inputs lose most, as it is called in every block: "mlp.down_proj"."""
    scale = facts.model.checkpoint.input_reach_scale  # where nothing was run
    name = facts.model.language.activation_block.input_layer or (scale.rpartition(".")[0] if scale else None)
    return re.sub(r"^.*\.\d+\.", "", name) if name else None


def _smaller(size: object, least: int) -> int | None:
    """Half as many weights per scale."""
    return size // 2 if isinstance(size, int) and size // 2 >= least else None


def _each_weight(groups: Groups, change: Callable[[Group], Group | None]) -> Groups | None:
    """The groups with other weights where these can be changed; None where none can."""
    changed = {
        name: {**group, "weights": new}
        for name, group in groups.items()
        if isinstance(own := group.get("weights"), Mapping) and (new := change(own)) is not None
    }
    return {**groups, **changed} if changed else None


def _finer(own: Group) -> Group | None:
    if own.get("type") != "int" or own.get("strategy") not in ("group", "channel", "tensor"):
        return None
    size = _smaller(own.get("group_size"), LEAST_PACKED) if own.get("strategy") == "group" else FIRST_GROUP
    return {**own, "strategy": "group", "group_size": size} if size is not None else None


def _with_zero_points(own: Group) -> Group | None:
    is_plain = own.get("type") == "int" and own.get("symmetric", True) is True
    return {**own, "symmetric": False} if is_plain else None


def _with_more_bits(own: object) -> Group | None:
    if not isinstance(own, Mapping) or own.get("type") != "int":
        return None
    bits = own.get("num_bits")
    return {**own, "num_bits": MORE_BITS} if isinstance(bits, int) and bits < MORE_BITS else None


def _of_tokens(groups: Groups) -> Groups | None:
    """Inputs with 8 bits and a scale per token, integers beside integers of 8 bits, else floats."""
    changed = {name: _of_tokens_in(group) for name, group in groups.items() if group.get("input_activations")}
    return {**groups, **changed} if changed and any(changed[name] != groups[name] for name in changed) else None


def _of_tokens_in(group: Group) -> Group:
    inputs, weights = group["input_activations"], group.get("weights")
    if not isinstance(inputs, Mapping):
        return group
    is_int = isinstance(weights, Mapping) and (weights.get("type"), weights.get("num_bits")) == ("int", 8)
    unset = {key: None for key in _OF_GROUPS if key in inputs}
    new = {"num_bits": 8, "type": "int" if is_int else "float", "strategy": "token", "dynamic": True, "symmetric": True}
    return {**group, "input_activations": {**inputs, **unset, **new}}


def _split(groups: Groups, targets: Collection[str], change: Callable[[object], object], part: str) -> Groups | None:
    """Groups of their own for these targets, like those that they are in but for one part; None where nothing changes.

    A group of nothing but these targets is changed itself.
    """
    owners: dict[str, list[str]] = {}
    for target in targets:
        if (owner := _owner_of(target, groups)) is not None:
            owners.setdefault(owner, []).append(target)
    found = dict(groups)
    for name, moved in owners.items():
        group = groups[name]
        own = group.get(part)
        new = change(own)
        if own is None or new == own or (part == "weights" and new is None):
            continue
        left = [each for each in _targets(group) if each not in moved]
        if left:
            found[name] = {**group, "targets": left}
            found[_new_name(found)] = {**group, "targets": moved, part: new}
        else:
            found[name] = {**group, part: new}
    return found if found != dict(groups) else None


def _new_name(groups: Collection[str]) -> str:
    return next(name for number in range(len(groups) + 1) if (name := f"group_{number}") not in groups)


def _targets(group: Group) -> list[str]:
    targets = group.get("targets")
    return [each for each in targets if isinstance(each, str)] if isinstance(targets, list) else []


def _owner_of(target: str, groups: Groups) -> str | None:
    """The group of a layer, or of the layers of a pattern; None where patterns of several groups may decide it."""
    named = next((name for name, group in groups.items() if target in _targets(group)), None)
    if named is not None or len(groups) == 1:
        return named or next(iter(groups))
    if any(each.startswith(PATTERN) for group in groups.values() for each in _targets(group)):
        return None
    # Classes of layers have no dots in their names, as modules inside of a network have.
    if target.startswith(PATTERN) and any("." in each for group in groups.values() for each in _targets(group)):
        return None
    return next((name for name, group in groups.items() if _CLASS in _targets(group)), None)
