"""What a toolchain was configured with and what it printed, as facts of a case."""

from typing import NamedTuple

from quantmedic.api.options import ToolchainOptions
from quantmedic.collectors.from_settings.mct_settings import MctSettings, read_mct_settings
from quantmedic.collectors.from_settings.toolchain_log import read_logs
from quantmedic.engine.case.facts import SearchFacts, SettingsFacts
from quantmedic.engine.rules.rulebase import RuleBase


class ToolchainFacts(NamedTuple):
    """Facts from logs and settings, None where there is no source; ``notice`` says why a source is not used."""

    search: SearchFacts | None
    settings: SettingsFacts | None
    notice: str | None


def read_mct(module: object, options: ToolchainOptions) -> MctSettings | None:
    """Settings of Sony's toolkit, if its configuration or log was given.

    Args:
        module: The quantized torch module, if there is one.
        options: What was given.

    Raises:
        DataError: The configuration is not a ``CoreConfig``, or the log cannot be read.
    """
    if options.core_config is None and options.mct_log is None:
        return None
    return read_mct_settings(module, options.core_config, options.mct_log)


def toolchain_facts(module: object, base: RuleBase, options: ToolchainOptions) -> ToolchainFacts:
    """Facts from the logs and from the settings of Sony's toolkit; see ``read_mct``.

    Raises:
        DataError: A log cannot be read, or the configuration is not a ``CoreConfig``.
    """
    mct = read_mct(module, options)
    logs = [*options.toolchain_logs, *(mct.logs if mct is not None else ())]
    search = read_logs(logs, base.logs) if logs else None
    if mct is None:
        return ToolchainFacts(search, None, None)
    known = mct.search.model_dump(exclude_none=True)
    return ToolchainFacts((search or SearchFacts()).model_copy(update=known), mct.settings, mct.notice)
