"""Files, logs and settings of toolchains, as a case of their own or as part of one that was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from quantmedic.api.cases import is_case, load_case, with_notice
from quantmedic.api.options import ToolchainOptions
from quantmedic.api.rulebase import known_and_own_patterns
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.toolchain_files.formats import FORMATS, RunSettings
from quantmedic.collectors.toolchain_files.merge import Source, imported_case, read_source, with_sources
from quantmedic.collectors.toolchain_files.toolchain_log import read_logs
from quantmedic.engine.case.facts import SearchFacts, SettingsFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.rules.rulebase import RuleBase


def import_files(*paths: str | Path) -> Case:
    """Read files of a toolchain into a case: configurations, logs, calibration tables, encodings of one model.

    One of the paths may be a case that was measured with both models: settings, recorded thresholds and reported
    figures are then added to it by name. Without one, layers and tensors are as the files name them, and nothing is
    measured. The first source of a value stands; a notice names others that contradict it.

    Args:
        paths: Files, the log folder of Sony's toolkit, and at most one case, which may be the folder of a report.

    Returns:
        The case; ``record.imports`` lists what was read from each file.

    Raises:
        DataError: A file cannot be read, is damaged or of no known kind; or there is nothing to import.
        CaseError: The case cannot be read.
    """
    given = [Path(path) for path in paths]
    cases = [path for path in given if is_case(path)]
    files = [path for path in given if path not in cases]
    if len(cases) > 1:
        raise DataError(
            "files are merged into one case",
            where=[str(path) for path in cases],
            help="cases of several parts of the data are merged by: quantmedic diagnose",
        )
    if not files:
        raise DataError("no file of a toolchain was given", help="name its configuration, log, table or encodings")
    sources = [read_source(file) for file in files]
    if not cases:
        return imported_case(sources)
    return with_sources(load_case(cases[0]), sources)


class ToolchainFiles(NamedTuple):
    """What files of a toolchain say, read and checked before anything is measured.

    ``search`` and ``settings`` are None where there is no source; ``notice`` says why a source is not used.
    """

    search: SearchFacts | None
    settings: SettingsFacts | None
    notice: str | None
    sources: Sequence[Source]

    def added_to(self, case: Case, models: Models | None = None) -> Case:
        """The case with that; ``models`` are those of the case, if open."""
        told = {name: facts for name in ("search", "settings") if (facts := getattr(self, name)) is not None}
        case = case.with_record(model=case.record.model.model_copy(update=told))
        if self.sources:
            names = [graph.names for graph in (models.float_graph, models.quantized)] if models is not None else [None]
            known = frozenset().union(*(own or () for own in names)) if None not in names else None
            case = with_sources(case, self.sources, known)
        return case if self.notice is None else with_notice(case, self.notice)


def read_toolchain(options: ToolchainOptions, base: RuleBase, module: object = None) -> ToolchainFiles:
    """Read logs, settings and results of a toolchain; ``module`` is the quantized torch module, if there is one.

    Raises:
        DataError: A file cannot be read, is damaged or of no known kind, or the configuration is not a ``CoreConfig``.
    """
    mct = read_mct(module, options)
    logs = [*options.toolchain_logs, *(mct.logs if mct is not None else ())]
    search = read_logs(logs, *known_and_own_patterns(base)) if logs else None
    sources = [read_source(Path(path)) for path in options.settings_files]
    if mct is None:
        return ToolchainFiles(search, None, None, sources)
    known = mct.search.model_dump(exclude_none=True)
    return ToolchainFiles((search or SearchFacts()).model_copy(update=known), mct.settings, mct.notice, sources)


def read_mct(module: object, options: ToolchainOptions) -> RunSettings | None:
    """Settings of Sony's toolkit, if its configuration or log was given.

    Args:
        module: The quantized torch module, if there is one.
        options: What was given.

    Raises:
        DataError: The configuration is not a ``CoreConfig``, or the log cannot be read.
    """
    if options.core_config is None and options.mct_log is None:
        return None
    readers = (each.read_run for each in FORMATS if each.read_run is not None)
    read_run = next(readers, None)
    if read_run is None:
        raise DataError("nothing is installed that reads settings of a run", where="--log FOLDER", help="leave it out")
    return read_run(module, options.core_config, options.mct_log)
