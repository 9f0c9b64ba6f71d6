"""Keyword arguments of the public functions, sorted into the groups that a run takes."""

from dataclasses import fields, replace
from difflib import get_close_matches

from quantmedic.api.arguments import CollectArguments
from quantmedic.api.options import CollectOptions, DataSource
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role


def group_arguments(
    representative: DataSource | None, validation: DataSource | None, arguments: CollectArguments
) -> CollectOptions:
    """The arguments of ``collect`` in groups; those that are missing or None have their defaults.

    Raises:
        DataError: ``preprocessing`` is none, and no mapping of roles to it.
        TypeError: An argument has no such name.
    """
    for name in arguments.keys() - CollectArguments.__annotations__.keys():
        raise TypeError(f"there is no argument {name!r}{_hint(name)}")
    given = {"representative": representative, "validation": validation, **arguments}
    given["preprocessing"] = preprocessing_by_role(arguments.get("preprocessing"))
    known = {name: value for name, value in given.items() if value is not None}
    usual = CollectOptions(mapping=arguments.get("mapping"))
    groups = {
        name: replace(group, **{each.name: known[each.name] for each in fields(group) if each.name in known})
        for name, group in usual.groups.items()
    }
    return replace(usual, **groups)


def _hint(name: str) -> str:
    """What a name that is no argument may have meant; options of the command line may be fields of another one."""
    if name in Preprocessing.__dataclass_fields__:
        return f": give preprocessing=quantmedic.Preprocessing({name}=…), for both data sets or by role"
    close = get_close_matches(name, CollectArguments.__annotations__, 1)
    return f"; is it {close[0]!r}?" if close else ""
