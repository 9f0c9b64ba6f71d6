"""Keyword arguments of the public functions as the one record that a run takes."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from quantmedic.api.arguments import CollectArguments, SearchArguments
from quantmedic.api.options import CollectOptions, DataSource, SearchOptions
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role

Options = TypeVar("Options", bound=CollectOptions)


def group_arguments(
    representative: DataSource | None, validation: DataSource | None, arguments: CollectArguments
) -> CollectOptions:
    """The arguments of ``collect``; those that are missing or None have their defaults.

    Raises:
        DataError: ``preprocessing`` is none, and no mapping of roles to it.
        TypeError: An argument has no such name.
    """
    for name in arguments.keys() - CollectArguments.__annotations__.keys():
        raise TypeError(f"there is no argument {name!r}{_hint(name)}")
    return _fill(CollectOptions, {"representative": representative, "validation": validation, **arguments})


def group_search_arguments(arguments: SearchArguments) -> SearchOptions:
    """The same of ``search``, whose names are known."""
    return _fill(SearchOptions, arguments)


def _fill(kind: type[Options], given: Mapping[str, Any]) -> Options:
    known = {**given, "preprocessing": preprocessing_by_role(given.get("preprocessing"))}
    return kind(**{name: value for name, value in known.items() if value is not None})


def _hint(name: str) -> str:
    """What a name that is no argument may have meant; options of the command line may be fields of another one."""
    if name in Preprocessing.__dataclass_fields__:
        return f": give preprocessing=quantmedic.Preprocessing({name}=…), for both data sets or by role"
    close = get_close_matches(name, CollectArguments.__annotations__, 1)
    return f"; is it {close[0]!r}?" if close else ""
