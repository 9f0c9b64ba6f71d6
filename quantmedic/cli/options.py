"""The groups of options that commands share, made of what their fields declare, and what the command line adds."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import click

from quantmedic.api.options import (
    CheckpointOptions,
    CollectOptions,
    DataOptions,
    MeasuringOptions,
    Option,
    ProofOptions,
    ReferenceOptions,
    RuleOptions,
    SpreadOptions,
    TextOptions,
    ToolchainOptions,
)
from quantmedic.cli.groups import CONTEXT as CONTEXT
from quantmedic.cli.groups import Decorator, OptionGroup, declared_group, join_groups, option
from quantmedic.cli.values import OutputFolder, Seconds
from quantmedic.collectors.data.preprocessing import parse_preprocessing
from quantmedic.engine.errors import DataError

if TYPE_CHECKING:
    from quantmedic.reports.terminal.lines import Verbosity

FORMATS = ("html", "markdown", "json", "png", "model-explorer", "metrics")
#: Formats that are written where none is named.
DEFAULT_FORMATS = FORMATS[:3]
#: Formats of what is printed as well as written.
PRINTED_FORMATS = ("html", "markdown", "json", "text")


class _DataArguments(TypedDict, total=False):
    representative: str | None
    validation: str | None
    labels: Path | None
    samples: int | None
    metric: str | None


def _data_options(
    *, preprocessing: Sequence[str] = (), metric_options: Sequence[str] = (), **given: Unpack[_DataArguments]
) -> DataOptions:
    settings = dict(map(_setting_of_metric, metric_options))
    return DataOptions(
        preprocessing=parse_preprocessing(preprocessing) if preprocessing else {},
        metric_direction=settings.pop("direction", None),
        metric_output=settings.pop("output", None),
        metric_options=settings,
        **given,
    )


def _setting_of_metric(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise DataError(
            "option of the metric cannot be read",
            where=f"--metric-option {text}",
            help="write --metric-option KEY=VALUE, such as --metric-option blank=28",
        )
    return name, value


data_options = declared_group("data", DataOptions, "Data", _data_options)
text_options = declared_group("texts", TextOptions, "Data")
measuring_options = declared_group("measuring", MeasuringOptions, "Measuring")


def _toolchain_options(*, toolchain_logs: Sequence[Path] = (), settings_files: Sequence[Path] = ()) -> ToolchainOptions:
    """A folder among the logs is that of Sony's toolkit."""
    folders = [path for path in toolchain_logs if path.is_dir()]
    if len(folders) > 1:
        raise click.BadParameter("one folder of mct.set_log_folder is enough", param_hint="--log")
    logs = [path for path in toolchain_logs if path not in folders]
    return ToolchainOptions(logs, folders[0] if folders else None, settings_files)


toolchain_file_options = declared_group(
    "toolchain", ToolchainOptions, "Known from elsewhere", _toolchain_options
).without("mct_log")
spread_options = declared_group("spread", SpreadOptions, "Measuring")
rule_options = declared_group("rules", RuleOptions, "Judging")
resume_option = declared_group("saving", CheckpointOptions, "Output").options["resume"]


class _References(TypedDict, total=False):
    reference_outputs: str | None
    device_outputs: str | None
    device_tensors: str | None
    device_names: str | None
    expected_float_metric: float | None
    expected_quantized_metric: float | None


def _reference_options(*, stages: Sequence[str], **given: Unpack[_References]) -> ReferenceOptions:
    return ReferenceOptions(stages=[_parse_stage(text) for text in stages], **given)


def _parse_stage(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise click.BadParameter(f"{text!r} is not NAME=FILE", param_hint="--stage")
    return name, path


reference_options = declared_group("references", ReferenceOptions, "Known from elsewhere", _reference_options)


def _proof_options(
    *, prove: bool | None = None, budget: float | None = None, write_fixed: Path | None = None
) -> ProofOptions:
    if budget is not None and prove is False:
        raise click.UsageError("--budget is the time for --prove; leave out --no-prove")
    wanted = prove or budget is not None or write_fixed is not None
    return ProofOptions(prove=(budget or True) if wanted else prove, write_fixed=write_fixed)


#: In Python, ``prove`` is the time.
_BUDGET = option(
    "--budget",
    type=Seconds(),
    metavar="TIME",
    title="Proof",
    help="Time for --prove, which it implies, such as 90s or 5m. Without, every machine tries as much.",
)
proof_options = declared_group("proof", ProofOptions, "Proof", _proof_options).replacing(budget=_BUDGET)

#: All options of a measurement.
collect_options = join_groups(
    "options",
    CollectOptions,
    data_options,
    text_options,
    measuring_options,
    reference_options,
    toolchain_file_options,
    proof_options,
    spread_options,
)
#: How two models are run by commands that need no more of it.
running_options = measuring_options.only("threads", "timeout", "memory", "device")


@dataclass(frozen=True)
class ReportOptions:
    """Where a report is written, in which formats, and how much of it is printed."""

    output: Annotated[
        Path | None, Option("Folder for the report's files.", "--output -o", kind="folder", daily=True)
    ] = None
    formats: Annotated[Sequence[str], Option("Formats of the report; repeat.", "--format", daily=True)] = ()
    quiet: Annotated[bool, Option("Print the verdict only.", "--quiet -q", daily=True)] = False
    verbose: Annotated[bool, Option("Print all layers and findings.", daily=True)] = False
    open_page: Annotated[bool, Option("Open the page in the browser.", "--open", daily=True)] = False

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
        type=OutputFolder(),
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

    previous: Annotated[
        Path | None,
        Option(
            "Case, or folder of a report, from before a remedy was applied; says what it brought, and ranks down what "
            "was in vain.",
            takes="CASE",
            daily=True,
        ),
    ] = None
    toolchain: Annotated[
        str | None,
        Option(
            "Toolchain of the prescription, such as ort, mct or litert; also tflite, inc, nncf, fx, pt2e, torchao, "
            "aimet, modelopt, horizon, llm-compressor, gptqmodel, autoawq, bitsandbytes, llama.cpp. [default: what the "
            "model carries marks of]",
            takes="NAME",
            daily=True,
        ),
    ] = None


judging_options = declared_group("judging", JudgingOptions, "Judging")


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
