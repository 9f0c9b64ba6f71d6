"""Keyword arguments of the public functions, sorted into the groups that a run takes."""

from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from quantmedic.api.options import (
    CheckpointOptions,
    CollectArguments,
    CollectOptions,
    DataOptions,
    DataSource,
    FixArguments,
    MeasuringOptions,
    ProofOptions,
    ReferenceOptions,
    SpreadOptions,
    TextOptions,
    ToolchainOptions,
)
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role

_Group = TypeVar(
    "_Group",
    DataOptions,
    TextOptions,
    MeasuringOptions,
    ReferenceOptions,
    ToolchainOptions,
    ProofOptions,
    CheckpointOptions,
    SpreadOptions,
)


def group_arguments(
    representative: DataSource | None, validation: DataSource | None, arguments: FixArguments
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
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    def group(kind: type[_Group]) -> _Group:
        return replace(kind(), **{field.name: known[field.name] for field in fields(kind) if field.name in known})

    return CollectOptions(
        data=group(DataOptions),
        texts=group(TextOptions),
        measuring=group(MeasuringOptions),
        references=group(ReferenceOptions),
        toolchain=group(ToolchainOptions),
        proof=group(ProofOptions),
        saving=group(CheckpointOptions),
        spread=group(SpreadOptions),
        mapping=arguments.get("mapping"),
    )


def _hint(name: str) -> str:
    """What a name that is no argument may have meant; options of the command line may be fields of another one."""
    if name in Preprocessing.__dataclass_fields__:
        return f": give preprocessing=quantmedic.Preprocessing({name}=…), for both data sets or by role"
    close = get_close_matches(name, CollectArguments.__annotations__, 1)
    return f"; is it {close[0]!r}?" if close else ""
