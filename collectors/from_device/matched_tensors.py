"""Which tensor of a dump is which of the model: by its name, by what tools make of names, or as the user says."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.from_device.dump import OPTION, Dump, DumpedTensor, list_names
from quantmedic.collectors.measure.device_tensors import NAMES_OPTION
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.errors import DataError
from quantmedic.engine.input_files import read_text
from quantmedic.engine.reading_limits import YAML_BYTES
from quantmedic.engine.yaml_text import NotYaml, parse_yaml

#: Ending of files in the type that the network has, as qnn-net-run writes them.
_NATIVE = "_native"


@dataclass(frozen=True)
class MatchedDump:
    """A dump whose tensors are known.

    Attributes:
        origin: Name of the file or folder.
        samples: Samples that it holds of each.
        tensors: By root, the tensor of the quantized model.
        notices: What was left out, and why.
    """

    origin: str
    samples: int
    tensors: Mapping[str, DumpedTensor]
    notices: Sequence[str]


def read_names(source: object) -> dict[str, str]:
    """Names of tensors of the model by their names on the device, from a mapping, or a file of JSON or YAML.

    Raises:
        DataError: It cannot be read, or holds anything but names by name.
    """
    if source is None:
        return {}
    where, content = NAMES_OPTION, source
    if not isinstance(source, Mapping):
        where = str(source)
        try:
            content = parse_yaml(read_text(Path(where).expanduser(), YAML_BYTES), where)
        except (OSError, UnicodeDecodeError, NotYaml) as error:
            raise _unreadable(where, f"cause  {error}") from error
    if not isinstance(content, Mapping) or not all(isinstance(n, str) for pair in content.items() for n in pair):
        raise _unreadable(where, "it holds something else than a name for each name")
    return dict(content)


def _unreadable(where: str, cause: str) -> DataError:
    return DataError(
        f"the names of {NAMES_OPTION} cannot be read",
        where=[where, cause],
        help='write JSON or YAML of one pair for each tensor: {"name on the device": "name in the model"}',
    )


def match_names(dump: Dump, models: Models, given: Mapping[str, str]) -> MatchedDump:
    """Find the tensors of a dump in the quantized model.

    Names are compared as they are, then without what cannot stand in names of files, and without case.

    Args:
        dump: The dump.
        models: Both models: a tensor may go by its name in either, or by that of the layer that writes it.
        given: Names in the model by those on the device.

    Raises:
        DataError: No tensor is of the model, or ``given`` names one that the model does not have.
    """
    aliases = _aliases(models)
    _check_given(given, aliases, models)
    found: dict[str, DumpedTensor] = {}
    unknown: list[str] = []
    others: list[str] = []
    notices = list(dump.notices)
    roots_of = {tensor.name: _roots(given.get(tensor.name, tensor.name), aliases) for tensor in dump.tensors}
    samples = _common_samples([tensor for tensor in dump.tensors if roots_of[tensor.name]])
    for tensor in sorted(dump.tensors, key=lambda tensor: tensor.name not in given):
        roots = roots_of[tensor.name]
        if not roots:
            unknown.append(tensor.name)
        elif tensor.samples != samples:
            others.append(f"{tensor.name} {tensor.samples}")
        elif len(roots) > 1:
            listed = " and ".join(sorted(roots)[:3])
            notices.append(f"{tensor.name}: it may be {listed}; {NAMES_OPTION} tells which")
        else:
            found.setdefault(next(iter(roots)), tensor)
    if not found:
        raise _nothing_matches(dump, models, notices)
    if others:
        notices.append(f"other numbers of samples than most, which hold {samples}: {list_names(others)}")
    if unknown:
        notices.append(f"no tensor that can be read in both models: {list_names(unknown)}")
    unused = sorted(set(given) - {tensor.name for tensor in dump.tensors})
    if unused:
        notices.append(f"{NAMES_OPTION} names what the dump does not hold: {list_names(unused)}")
    lacking = [pair.root for pair in models.pairs if pair.root not in found]
    if lacking:
        notices.append(f"the dump lacks {len(lacking)} of {len(models.pairs)} tensors: {list_names(lacking)}")
    return MatchedDump(dump.origin, samples, found, [f"{OPTION} {dump.origin}: {notice}" for notice in notices])


def _common_samples(tensors: Sequence[DumpedTensor]) -> int:
    """How many samples most of the tensors hold; the larger number where two are as frequent, 0 without any."""
    counts = [tensor.samples for tensor in tensors]
    return max(counts, key=lambda count: (counts.count(count), count), default=0)


def _aliases(models: Models) -> list[Mapping[str, set[str]]]:
    """Roots by name: names of tensors, of their copies, and of layers, the surest first; then all as files have them.

    LiteRT joins names of what it fused by semicolons: each of them may stand alone.
    Only tensors that can be read in both models are there.
    """
    pairs = {pair.root: pair for pair in models.pairs}
    own = _by_name(
        (name, root) for root, pair in pairs.items() for name in {pair.root, pair.twin, pair.tap.tensor} - {""}
    )
    graph = models.quantized
    copies = _by_name(
        [
            *((name, root) for name in graph.roots if (root := graph.root(name)) in pairs),
            *((part, root) for root in pairs for part in root.split(";") if ";" in root),
        ]
    )
    makers = ((graph.producers.get(root), root) for root in pairs)
    written = [(op, root) for op, root in makers if op is not None and len(op.outputs) == 1]
    layers = _by_name((name, root) for op, root in written for name in {op.name, op.node.name} if name)
    exact = [own, copies, layers]
    return [*exact, *(_by_name((_key(n), r) for n, roots in names.items() for r in roots) for names in exact)]


def _by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, root in pairs:
        found.setdefault(name, set()).add(root)
    return found


def _key(name: str) -> str:
    """A name as it may become the name of a file or a variable."""
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def _roots(name: str, aliases: Sequence[Mapping[str, set[str]]]) -> set[str]:
    """Tensors that a name may stand for: those of the surest kind of name."""
    exact, lenient = aliases[: len(aliases) // 2], aliases[len(aliases) // 2 :]
    key = _key(name)
    tries = [*((names, name) for names in exact), *((names, key) for names in lenient)]
    tries += [(names, key.removesuffix(_NATIVE)) for names in lenient]
    return next((names[known] for names, known in tries if known in names), set())


def _check_given(given: Mapping[str, str], aliases: Sequence[Mapping[str, set[str]]], models: Models) -> None:
    for device, name in given.items():
        if not _roots(name, aliases):
            raise DataError(
                f"{NAMES_OPTION} names a tensor that cannot be read in both models",
                where=f"{device}: {name}{did_you_mean(name, [pair.root for pair in models.pairs])}",
                help="give names of the quantized or the float model, as the layer table of the report has them",
            )


def _nothing_matches(dump: Dump, models: Models, notices: Sequence[str]) -> DataError:
    names = [tensor.name for tensor in dump.tensors]
    return DataError(
        f"no tensor of {OPTION} is one of the model",
        where=[
            f"{dump.origin}  {list_names(names)}",
            f"model  {list_names([pair.root for pair in models.pairs])}",
            *notices[:3],
        ],
        help=f"name the files after tensors of the model, or say with {NAMES_OPTION} names.json which is which: "
        '{"name on the device": "name in the model"}',
    )
