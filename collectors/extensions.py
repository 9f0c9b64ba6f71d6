"""Extensions: what packages add to the core, ours and anybody's, found by their entry points.

A ``Kind`` of extension is a group of entry points. Each entry point gives an object with the interface of its kind, or
a tuple of such objects. A module is imported when its turn comes, and one that cannot be imported is reported where it
is asked for by name, or where nothing else takes what was given.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from quantmedic.engine.errors import QuantmedicError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints, SelectableGroups  # of which a version of Python has one or both

T = TypeVar("T")
Taker = TypeVar("Taker", bound="Taking")
_OURS = "quantmedic"
#: Beside this folder in a checkout; an installed package has none there.
_CHECKOUT = Path(__file__).resolve().parents[1] / "pyproject.toml"


@dataclass(frozen=True)
class Kind(Generic[T]):
    """One kind of extension.

    Attributes:
        group: The group of its entry points.
        interface: Type of the objects that they give.
    """

    group: str
    interface: type

    def __iter__(self) -> Iterator[T]:
        """Those that can be loaded, ours first, then others by name; each is loaded when its turn comes."""
        for point in _points(self.group):
            found = self._try_load(point)
            if not isinstance(found, QuantmedicError):
                yield from found

    def find(self, name: str) -> tuple[T, ...]:
        """Those of one name that can be loaded; none where there is no such entry point.

        Raises:
            QuantmedicError: There are some, and none can be loaded.
        """
        found = [self._try_load(point) for point in _points(self.group) if point.name == name]
        loaded = tuple(each for own in found if not isinstance(own, QuantmedicError) for each in own)
        broken = [own for own in found if isinstance(own, QuantmedicError)]
        if broken and not loaded:
            raise broken[0]
        return loaded

    def errors(self) -> list[QuantmedicError]:
        """Why others cannot be loaded."""
        found = map(self._try_load, _points(self.group))
        return [each for each in found if isinstance(each, QuantmedicError)]

    def _try_load(self, point: EntryPoint) -> tuple[T, ...] | QuantmedicError:
        try:
            found = _load(point)
        except QuantmedicError as error:
            return error
        if all(isinstance(each, self.interface) for each in found):
            return cast(tuple[T, ...], found)
        name = self.interface.__name__
        return _cannot_be_used(point, f"it gives something else than a {name} of this version of quantmedic")


class Taking(Protocol):
    """An extension that is for some of what users give."""

    def recognizes(self, given: object, /) -> bool:
        """Whether that is surely for this one."""

    def takes_rest(self, given: object, /) -> bool:
        """Whether it is, where nothing recognizes it."""


def extension_for(kind: Kind[Taker], given: object, name: str) -> Taker:
    """The extension that recognizes what the user gave, else the first that takes the rest.

    Args:
        kind: Where to look.
        given: A path, or an object.
        name: How messages name it.

    Raises:
        QuantmedicError: Nothing recognizes it, and one that may cannot be loaded.
    """
    found = next((each for each in kind if is_recognized(each, given)), None)
    if found is None:
        refuse_broken(name, kind)
        found = next(each for each in kind if each.takes_rest(given))
    return found


def is_recognized(extension: Taking, given: object) -> bool:
    """Whether an extension says that something is surely for it.

    Raises:
        QuantmedicError: It fails; names the package.
    """
    try:
        return extension.recognizes(given)
    except QuantmedicError:
        raise
    except Exception as error:  # whatever code of others raises
        package = type(extension).__module__
        raise QuantmedicError(
            f"an extension failed to tell whether it takes {given}",
            where=[f"package {package.partition('.')[0]}  {package}", f"cause  {type(error).__name__}: {error}"],
            help=f"report it to who made {package.partition('.')[0]}, or do without it: pip uninstall",
        ) from error


def refuse_broken(given: str, *kinds: Kind[Any]) -> None:
    """Refuse what nothing takes that can be loaded, where something cannot that may.

    Raises:
        QuantmedicError: Names the packages that cannot be loaded, and what to do.
    """
    errors = [error for kind in kinds for error in kind.errors()]
    if errors:
        raise QuantmedicError(
            f"nothing that can be loaded recognizes {given}, and an extension that may cannot be loaded",
            where=[line for error in errors for line in error.where],
            help=errors[0].help,
        )


def other_packages() -> list[str]:
    """Name and version of each package beside this one that adds extensions, and their names by what they are."""
    found = _read_entry_points()
    added: dict[str, list[str]] = {}
    for group in sorted(group for group in found.groups if group.startswith(f"{_OURS}.")):
        for point in found.select(group=group):
            if point.dist is not None and point.dist.name != _OURS:
                package = f"{point.dist.name} {point.dist.version}"
                added.setdefault(package, []).append(f"{group.removeprefix(f'{_OURS}.')} {point.name}")
    return sorted(f"{package}: {', '.join(names)}" for package, names in added.items())


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group in the order in which they are asked: ours, then others by name.

    Ours are those of pyproject.toml in a checkout, whose installation may be older.
    """
    found = _read_entry_points().select(group=group)
    ours = [point for point in found if _package(point) == _OURS]
    if _CHECKOUT.is_file():
        ours = [EntryPoint(name, value, group) for name, value in _groups_of_checkout().get(group, {}).items()]
    if not ours:
        raise QuantmedicError(
            f"the entry points of quantmedic are not found ({group})",
            where=str(Path(__file__).parent),
            help="install it with pip: a copy of its files alone does not tell what belongs to it",
        )
    others = [point for point in found if _package(point) != _OURS]
    return tuple(each for points in (ours, others) for each in sorted(points, key=lambda point: point.name))


@cache
def _read_entry_points() -> "EntryPoints | SelectableGroups":
    """All entry points, for which every installed package is looked into."""
    return entry_points()


@cache
def _groups_of_checkout() -> Mapping[str, Mapping[str, str]]:
    project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8"))["project"]
    found: Mapping[str, Mapping[str, str]] = project["entry-points"]
    return found


def _package(point: EntryPoint) -> str:
    return _OURS if point.dist is None else point.dist.name


@cache
def _load(point: EntryPoint) -> tuple[object, ...]:
    try:
        found = point.load()
    except Exception as error:  # whatever a module of others raises
        raise _cannot_be_used(point, f"{type(error).__name__}: {error}") from error
    return found if isinstance(found, tuple) else (found,)


def _cannot_be_used(point: EntryPoint, cause: str) -> QuantmedicError:
    name = _package(point)
    version = "" if point.dist is None else f" {point.dist.version}"
    return QuantmedicError(
        f"the extension {point.name} cannot be loaded",
        where=[f"package {name}{version}", f"{point.group}  {point.value}", f"cause  {cause}"],
        help=f"install a version that fits: pip install --upgrade {name}, or do without it: pip uninstall {name}",
    )
