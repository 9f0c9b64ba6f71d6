"""The options of all commands: each is declared once, in its group, and means the same everywhere."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quantmedic.api.options import (
    CollectOptions,
    MeasuringOptions,
    ProofOptions,
    ReferenceOptions,
    RuleOptions,
    SpreadOptions,
    ToolchainOptions,
)
from quantmedic.cli.data_options import PREPROCESSING as PREPROCESSING
from quantmedic.cli.data_options import data_options as data_options
from quantmedic.cli.data_options import text_options as text_options
from quantmedic.cli.groups import CONTEXT as CONTEXT
from quantmedic.cli.groups import OptionGroup, join_groups, option
from quantmedic.cli.values import Bytes, Limit, OutputFile, OutputFolder, Seconds

if TYPE_CHECKING:
    from quantmedic.reports.terminal.lines import Verbosity

FORMATS = ("html", "markdown", "json", "png", "model-explorer", "metrics")
#: Formats that are written where none is named.
DEFAULT_FORMATS = FORMATS[:3]
#: Formats of what is printed as well as written.
PRINTED_FORMATS = ("html", "markdown", "json", "text")


measuring_options = OptionGroup(
    "measuring",
    MeasuringOptions,
    {
        "mode": option(
            "--mode",
            type=click.Choice(["exact", "fast"]),
            default="exact",
            show_default=True,
            help="fast measures tensors on 32 random samples or one of 32, at little more than the cost of "
            "inference; outputs and accuracy on all.",
        ),
        "batch_size": option(
            "--batch-size", type=click.IntRange(1), help="Samples per run. [default: what suits the cache]"
        ),
        "threads": option("--threads", type=click.IntRange(1), help="Processor threads. [all cores]"),
        "timeout": option(
            "--timeout",
            type=Limit(),
            metavar="TIME",
            help="Time that one run of a model may take, on one batch; opening it counts as one. 0 or never: no limit. "
            "[default: 10m]",
        ),
        "memory": option(
            "--memory",
            type=Bytes(),
            metavar="SIZE",
            help="Take no more than SIZE beyond the opened models: fewer batches side by side, fewer tensors at a "
            "time; of torch modules it bounds the observed tensors. [default: a quarter of the free memory]",
        ),
        "device": option(
            "--device",
            metavar="NAME",
            help="Run both models on cpu, cuda or cuda:1; torch modules and language models also on mps or xpu. "
            "[default: where they are, checkpoints on the processor]",
        ),
        "seed": option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed of random samples and bootstrapped intervals.",
        ),
        "operator_error": option(
            "--operator-error", is_flag=True, help="Also measure each operator on float inputs (one more run)."
        ),
        "step_error": option(
            "--step-error", is_flag=True, help="Also measure each on deployed inputs, as LiteRT's debugger does."
        ),
        "thumbnails": option(
            "--thumbnails/--no-thumbnails",
            default=True,
            help="Keep small pictures of a few samples in case and report. [default: where they are images]",
        ),
        "profile": option(
            "--profile",
            is_flag=True,
            help="Also time both models and their operators; such reports differ from run to run.",
        ),
        "attribution": option(
            "--attribution/--no-attribution",
            default=True,
            help="Divide the noise among its sources, and simulate what remedies recover. [default: yes]",
        ),
    },
)


def _reference_options(
    *,
    reference_outputs: str | None,
    device_outputs: str | None,
    device_tensors: str | None,
    device_names: str | None,
    expected_float_metric: float | None,
    expected_quantized_metric: float | None,
    stages: Sequence[str],
) -> ReferenceOptions:
    pairs = [_parse_stage(text) for text in stages]
    return ReferenceOptions(
        reference_outputs,
        device_outputs,
        device_tensors,
        device_names,
        expected_float_metric,
        expected_quantized_metric,
        pairs,
    )


def _parse_stage(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise click.BadParameter(f"{text!r} is not NAME=FILE", param_hint="--stage")
    return name, path


reference_options = OptionGroup(
    "references",
    _reference_options,
    {
        "reference_outputs": option(
            "--reference-outputs", metavar="FILE", help="Framework's outputs on the evaluation data: .npz, .npy."
        ),
        "device_outputs": option(
            "--device-outputs", metavar="FILE", help="The device's outputs on the evaluation data: .npz, .npy."
        ),
        "device_tensors": option(
            "--device-tensors",
            metavar="PATH",
            help="Tensors that the device computed on the first evaluation samples: folder of .npy, one subfolder of "
            ".raw or .npy per sample, .npz, or a dump of Polygraphy, onnxruntime, RKNN or ExecuTorch.",
        ),
        "device_names": option(
            "--device-names", metavar="FILE", help="Names of these tensors in the model: JSON or YAML of name: name."
        ),
        "expected_float_metric": option(
            "--expected-float-metric", type=float, metavar="X", help="Float metric that you know from training."
        ),
        "expected_quantized_metric": option(
            "--expected-quantized-metric",
            type=float,
            metavar="X",
            help="Quantized metric that another evaluation gave, such as your application's.",
        ),
        "stages": option(
            "--stage", "stages", multiple=True, metavar="NAME=FILE", help="Model on the way to int8, in order; repeat."
        ),
    },
)


toolchain_file_options = OptionGroup(
    "toolchain",
    ToolchainOptions,
    {
        "toolchain_logs": option(
            "--toolchain-log",
            "--log",
            "toolchain_logs",
            multiple=True,
            metavar="FILE",
            help="What the toolchain printed; repeat. Without QUANT: why there is none.",
        ),
        "mct_log": option(
            "--mct-log", metavar="FOLDER", help="What Sony's toolkit logged: the folder of mct.set_log_folder."
        ),
        "settings_files": option(
            "--settings",
            "settings_files",
            multiple=True,
            metavar="FILE",
            help="Files of the toolchain: configuration, log, table, encodings; repeat.",
        ),
    },
)


def _proof_options(*, prove: bool | None, budget: float | None, write_fixed: Path | None = None) -> ProofOptions:
    if budget is not None and prove is False:
        raise click.UsageError("--budget is the time for --prove; leave out --no-prove")
    wanted = prove or budget is not None or write_fixed is not None
    return ProofOptions(prove=(budget or True) if wanted else prove, write_fixed=write_fixed)


proof_options = OptionGroup(
    "proof",
    _proof_options,
    {
        "prove": option(
            "--prove/--no-prove",
            default=None,
            help="Carry out remedies, run the printed prescription, measure what they recover. Unless told, "
            "`diagnose` and `demo` try only what leads.",
        ),
        "budget": option(
            "--budget",
            type=Seconds(),
            metavar="TIME",
            help="Limit the time for --prove, which it implies: 90, 90s or 5m. Without, every machine tries as much.",
        ),
        "write_fixed": option(
            "--write-fixed",
            type=OutputFile(".onnx", ".tflite", ".xml"),
            metavar="FILE",
            help="Write the model with all proven remedies; implies --prove.",
        ),
    },
)


def _spread_options(
    *, shard: str | None = None, shards: Path | None = None, cluster: str | None = None
) -> SpreadOptions:
    if shard is not None and (shards is not None or cluster is not None):
        raise click.UsageError("--shard measures one part in this process: leave --shards and --cluster out")
    return SpreadOptions(shard, shards, cluster)


spread_options = OptionGroup(
    "spread",
    _spread_options,
    {
        "shard": option("--shard", metavar="K/N", help="Measure part K of N of the samples only, as in job arrays."),
        "shards": option(
            "--shards",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Go on from the cases that all shards have left there.",
        ),
        "cluster": option(
            "--cluster",
            metavar="WHERE",
            help="Workers that measure and prove: local, local:4, tcp://HOST:8786 or scheduler.json of Dask.",
        ),
    },
)


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


def _refuse_shard(context: click.Context, _: click.Parameter, shard: str | None) -> None:
    if shard is not None:
        raise click.UsageError(
            f"{context.info_name} judges all shards together: measure each with quantmedic collect … --shard {shard} "
            "-o shards/….case, then give their folder with --shards"
        )


#: All options of a measurement that is judged at once: one shard alone is not.
judged_options = collect_options.replacing(shard=option("--shard", hidden=True, callback=_refuse_shard))


rule_options = OptionGroup(
    "rules",
    RuleOptions,
    {
        "folders": option(
            "--rules", "folders", multiple=True, type=click.Path(path_type=Path), help="Folder of your rules; repeat."
        ),
        "select": option(
            "--select", multiple=True, metavar="RULE", help="Judge only these: id, prefix, name or family."
        ),
        "ignore": option(
            "--ignore", multiple=True, metavar="RULE", help="Leave these out; they are listed as ignored."
        ),
        "thresholds": option(
            "--threshold", "thresholds", multiple=True, metavar="NAME=VALUE", help="Override a threshold; repeat."
        ),
        "threshold_file": option(
            "--thresholds", "threshold_file", type=click.Path(path_type=Path), help="The same from a YAML file."
        ),
    },
)


@dataclass(frozen=True)
class ReportOptions:
    """Where a report is written, in which formats, and how much of it is printed."""

    output: Path | None = None
    formats: Sequence[str] = ()
    quiet: bool = False
    verbose: bool = False
    open_page: bool = False

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


_QUIET = option("--quiet", "-q", is_flag=True, help="Print the verdict only.")
_VERBOSE = option("--verbose", is_flag=True, help="Print all layers and findings.")
#: A report in a folder, which is always written.
report_options = OptionGroup(
    "report",
    ReportOptions,
    {
        "output": option(
            "--output",
            "-o",
            type=OutputFolder(),
            default="report",
            show_default=True,
            help="Folder of the report.",
        ),
        "formats": option(
            "--format",
            "formats",
            multiple=True,
            type=click.Choice(FORMATS),
            help="Repeat. [default: html markdown json]",
        ),
        "quiet": _QUIET,
        "verbose": _VERBOSE,
        "open_page": option("--open", "open_page", is_flag=True, help="Open the page in the browser."),
    },
)


def printing_options(formats: Sequence[str], default: str = "text") -> OptionGroup[ReportOptions]:
    """Options of a command that prints its answer, and writes it to a folder where one is given."""
    return OptionGroup(
        "report",
        ReportOptions,
        {
            "output": option("--output", "-o", type=OutputFolder(), help="Folder for the report's files."),
            "formats": option(
                "--format",
                "formats",
                multiple=True,
                type=click.Choice(formats),
                help=f"Repeat with --output; one without it is printed. [default: {default}]",
            ),
            "quiet": _QUIET,
            "verbose": _VERBOSE,
        },
    )


resume_option = option(
    "--resume", is_flag=True, help="Continue from the unfinished work that an interrupted run left in the output."
)


@dataclass(frozen=True)
class JudgingOptions:
    """What a diagnosis takes into account beside the case and the rules."""

    previous: Path | None = None
    toolchain: str | None = None


judging_options = OptionGroup(
    "judging",
    JudgingOptions,
    {
        "previous": option(
            "--previous",
            metavar="CASE",
            type=click.Path(path_type=Path),
            help="Case, or folder of a report, from before a remedy was applied: says what it brought, and ranks down "
            "what was in vain.",
        ),
        "toolchain": option(
            "--toolchain",
            metavar="NAME",
            help="Write the prescription for: ort, mct, litert, tflite, inc, nncf, fx, pt2e, torchao, aimet, modelopt, "
            "horizon, llm-compressor, gptqmodel, autoawq, bitsandbytes, llama.cpp. [default: what the model carries "
            "marks of]",
        ),
    },
)
config_option = option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Policy. [default: the nearest quantmedic.toml, or pyproject.toml with tool.quantmedic]",
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
