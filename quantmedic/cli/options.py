"""The groups of options that commands share, made of what their fields declare, and what the command line adds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.types import FuncParamType

from quantmedic.api.cases import CASE_FILE
from quantmedic.api.options import (
    SUSPECT,
    TAKEN,
    CollectOptions,
    DataOptions,
    MeasuringOptions,
    Option,
    ProofOptions,
    ReferenceOptions,
    RuleOptions,
    SearchOptions,
    TextOptions,
    ToolchainOptions,
)
from quantmedic.cli.groups import Decorator, OptionGroup, declared_group, option, options_of
from quantmedic.cli.values import CASE, FOLDER, seconds
from quantmedic.collectors.data.preprocessing import parse_preprocessing

if TYPE_CHECKING:
    from quantmedic.reports.terminal.lines import Verbosity

FORMATS = ("html", "markdown", "json", "png", "model-explorer", "metrics")
#: Formats that are written where none is named.
DEFAULT_FORMATS = FORMATS[:3]
#: Formats of what is printed as well as written.
PRINTED_FORMATS = ("html", "markdown", "json", "text")


def _measurement_of(**parsed: Any) -> dict[str, Any]:
    """The fields of ``CollectOptions`` of what click parsed: texts become what they stand for."""
    if "preprocessing" in parsed:
        given = parsed["preprocessing"]
        parsed["preprocessing"] = parse_preprocessing(given) if given else {}
    if "metric_options" in parsed:
        settings = dict(_parse_pair(text, "--metric-option", "KEY=VALUE") for text in parsed["metric_options"])
        parsed["metric_direction"] = settings.pop("direction", None)
        parsed["metric_output"] = settings.pop("output", None)
        parsed["metric_options"] = settings
    if "stages" in parsed:
        parsed["stages"] = [_parse_pair(text, "--stage", "NAME=FILE") for text in parsed["stages"]]
    if "toolchain_logs" in parsed:
        parsed |= _split_logs(parsed["toolchain_logs"])
    if "budget" in parsed:
        budget, prove = parsed.pop("budget"), parsed.get("prove")
        if budget is not None and prove is False:
            raise click.UsageError("--budget is the time for --prove; leave out --no-prove")
        wanted = prove or budget is not None or parsed.get("write_fixed") is not None
        parsed["prove"] = (budget or True) if wanted else prove
    return parsed


def _parse_pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
    return name, value


def _split_logs(logs: Sequence[Path]) -> dict[str, Any]:
    """A folder among the logs is that of Sony's toolkit."""
    folders = [path for path in logs if path.is_dir()]
    if len(folders) > 1:
        raise click.BadParameter("one folder of mct.set_log_folder is enough", param_hint="--log")
    return {"toolchain_logs": [path for path in logs if path not in folders], "mct_log": next(iter(folders), None)}


#: In Python, ``prove`` is the time.
_BUDGET = option(
    "--budget",
    type=FuncParamType(seconds),
    metavar="TIME",
    title="Proof",
    help="Time for --prove, which it implies, such as 90s or 5m. Without, every machine tries as much.",
)
#: Options of a measurement by the title that they stand under.
_MEASURED: dict[str, Decorator] = {
    **options_of(DataOptions, "Data"),
    **options_of(TextOptions, "Data"),
    **options_of(MeasuringOptions, "Measuring"),
    **options_of(ReferenceOptions, "Known from elsewhere"),
    **options_of(ToolchainOptions, "Known from elsewhere"),
    **options_of(ProofOptions, "Proof"),
    "budget": _BUDGET,
    "cluster": options_of(CollectOptions, "Measuring", inherited=False)["cluster"],
}
#: All options of a measurement.
collect_options = OptionGroup("options", lambda **parsed: CollectOptions(**_measurement_of(**parsed)), _MEASURED)
#: Their names by what they are about.
DATA, TOOLCHAIN, PROOF = (tuple(options_of(kind, "")) for kind in (DataOptions, ToolchainOptions, ProofOptions))
#: How two models are run by commands that need no more of it.
RUNNING = ("threads", "timeout", "memory", "device")
#: Where a command writes a case.
case_option = option(
    "--output",
    "-o",
    type=CASE,
    default=CASE_FILE,
    show_default=True,
    title="Output",
    help="Case file, or a folder for it.",
)
resume_option = options_of(CollectOptions, "Output", inherited=False)["resume"]
rule_options = declared_group("rules", RuleOptions, "Judging")


@dataclass(frozen=True)
class ReportOptions:
    """Where a report is written, in which formats, and how much of it is printed."""

    output: Path | None = Option("Folder for the report's files.", "--output -o", kind="folder", daily=True).field()
    formats: Sequence[str] = Option("Formats of the report; repeat.", "--format", daily=True).field(())
    quiet: bool = Option("Print the verdict only.", "--quiet -q", daily=True).field(False)
    verbose: bool = Option("Print all layers and findings.", daily=True).field(False)
    open_page: bool = Option("Open the page in the browser.", "--open", daily=True).field(False)

    @property
    def verbosity(self) -> "Verbosity":
        """How much to print: the verdict alone wins over all layers."""
        return "quiet" if self.quiet else "verbose" if self.verbose else "normal"

    @property
    def printed_format(self) -> str:
        """What goes to standard output: text, or the one format that is not written to a folder."""
        return self.formats[0] if self.formats and self.output is None else "text"

    def check(self) -> None:
        """Refuse several formats where only one can be printed."""
        if self.output is None and len(self.formats) > 1:
            raise click.UsageError("several formats need a folder: add --output")


def _format_option(formats: Sequence[str], help: str) -> Decorator:
    return option(
        "--format",
        "formats",
        multiple=True,
        type=click.Choice(formats),
        metavar="NAME",
        title="Output",
        daily=False,
        help=f"{', '.join(formats)}; {help}",
    )


_report_options = declared_group("report", ReportOptions, "Output")
#: A report in a folder, which is always written.
report_options = _report_options.replacing(
    output=option(
        "--output",
        "-o",
        type=FOLDER,
        default="report",
        show_default=True,
        title="Output",
        help="Folder of the report.",
    ),
    formats=_format_option(FORMATS, "repeat. [default: html markdown json]"),
)


def printing_options(formats: Sequence[str], default: str = "text") -> OptionGroup[ReportOptions]:
    """Options of a command that prints its answer, and writes it to a folder where one is given."""
    help = f"repeat with --output; one without it is printed. [default: {default}]"
    return _report_options.without("open_page").replacing(formats=_format_option(formats, help))


@dataclass(frozen=True)
class JudgingOptions:
    """What a diagnosis takes into account beside the case and the rules."""

    previous: Path | None = Option(
        "Case, or folder of a report, from before a remedy was applied; says what it brought, and ranks down what "
        "was in vain.",
        takes="CASE",
        daily=True,
    ).field()
    toolchain: str | None = Option(
        "Toolchain of the prescription, such as ort, mct or litert; also tflite, inc, nncf, fx, pt2e, torchao, "
        "aimet, modelopt, horizon, llm-compressor, gptqmodel, autoawq, bitsandbytes, llama.cpp. [default: what the "
        "model carries marks of]",
        takes="NAME",
        daily=True,
    ).field()


judging_options = declared_group("judging", JudgingOptions, "Judging")


def _search_of(**parsed: Any) -> SearchOptions:
    """The options of a search; functions are given as ``NAME=module:function``."""
    for name in ("layer_metrics", "pair_metrics", "output_metrics"):
        parsed[name] = _parse_functions(parsed[name], f"--{name.replace('_', '-').removesuffix('s')}")
    parsed["threshold"] = _threshold_of(parsed["threshold"])
    parsed["methods"] = [name.strip() for text in parsed["methods"] for name in text.split(",") if name.strip()]
    return SearchOptions(**_measurement_of(**parsed))


def _threshold_of(texts: Sequence[str]) -> float | None:
    """The threshold of suspicion; a number alone is that, too."""
    if not texts:
        return None
    from quantmedic.api.rulebase import rules_in_force  # loads the rules, which other commands load later

    settings = [text if "=" in text or Path(text).exists() else f"{SUSPECT}={_number(text)}" for text in texts]
    return rules_in_force(RuleOptions(thresholds=settings)).thresholds[SUSPECT].value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no number; write an error in steps, such as 0.5, or NAME=VALUE "
            "(quantmedic explain --list thresholds lists the names)",
            param_hint="--threshold",
        ) from error


def _parse_functions(texts: Sequence[str], option: str) -> dict[str, str]:
    functions: dict[str, str] = {}
    for name, function in (_parse_pair(text, option, "NAME=module:function") for text in texts):
        if name in functions:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        functions[name] = function
    return functions


_OF_SEARCHES = _MEASURED | options_of(SearchOptions, "Choice", inherited=False) | dict(judging_options.options)
search_options = OptionGroup("options", _search_of, _OF_SEARCHES).only(
    *(name for name in _OF_SEARCHES if any(name in taken for taken in TAKEN.values()))
)


def refuse_options(context: click.Context, names: Collection[str], reason: str) -> None:
    """Refuse options that would do nothing, where they were given.

    Raises:
        click.UsageError: Names the options and the reason.
    """
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"{', '.join(given)} {reason}")
