"""The command ``search``: which layers make the noise, which have to stay in float, which calibration suits best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from quantmedic.api.calibration_search import search_calibrations
from quantmedic.api.layer_searches import (
    SUSPECT,
    DebuggerMetrics,
    GoalOptions,
    SensitivityInterrupted,
    debug_pair,
    measure_sensitivity,
    search_fallback,
)
from quantmedic.api.options import (
    CheckpointOptions,
    DataOptions,
    MeasuringOptions,
    Option,
    RuleOptions,
    SpreadOptions,
)
from quantmedic.api.search import write_layers, write_search
from quantmedic.api.thresholds import rules_in_force
from quantmedic.cli.groups import Command, OptionGroup, declared_group
from quantmedic.cli.limits import limit_options
from quantmedic.cli.options import (
    CONTEXT,
    JudgingOptions,
    data_options,
    judging_options,
    measuring_options,
    refuse_options,
    resume_option,
    rule_options,
    spread_options,
)
from quantmedic.cli.streams import print_line, print_report
from quantmedic.cli.terminal import ascii_only, interrupted_status, progress_bars, wrote_text
from quantmedic.engine.contract.searches import MODES, CalibrationsRecord
from quantmedic.reports.search_formats import DEFAULT_FORMATS, render_search, search_json, search_markdown

_FUNCTION = "NAME=module:function"


@dataclass(frozen=True)
class SearchOptions:
    """What each kind of search takes beside models and data, and where its answer goes."""

    runs: Annotated[
        Literal["one", "all-but-one", "cumulative", "all"],
        Option("sensitivity: one layer quantized, all but one, or all up to one.", daily=True),
    ] = "all"
    methods: Annotated[
        str | None,
        Option(
            "calibrations: only these, such as min-max,entropy,percentile 99.99. [default: all]",
            takes="NAME,…",
            daily=True,
        ),
    ] = None
    denylists: Annotated[
        Sequence[str],
        Option(
            "debugger: evaluate with these layers in float; names of tensors, suspected, first and op:TYPE, separated "
            "by commas, or @FILE; repeat.",
            "--denylist",
            "NAMES",
            daily=True,
        ),
    ] = ()
    layer_metrics: Annotated[
        Sequence[str],
        Option("debugger: of the difference quantized - float of each sample; repeat.", "--layer-metric", _FUNCTION),
    ] = ()
    pair_metrics: Annotated[
        Sequence[str],
        Option("debugger: of (float, codes, scale, zero_point) of each sample; repeat.", "--pair-metric", _FUNCTION),
    ] = ()
    output_metrics: Annotated[
        Sequence[str],
        Option("debugger: of (float_outputs, quantized_outputs) of each sample; repeat.", "--output-metric", _FUNCTION),
    ] = ()
    output: Annotated[
        Path | None,
        Option(
            "Folder for the answer; of sensitivity report by default. debugger: FILE.csv for the table alone.",
            "--output -o",
            kind="table or folder",
            daily=True,
        ),
    ] = None
    formats: Annotated[
        Sequence[Literal["text", "json", "markdown"]],
        Option("fallback, calibrations: repeat with --output; one without it is printed.", "--format"),
    ] = ()
    verbose: Annotated[bool, Option("Print all layers.")] = False

    @property
    def printed_format(self) -> str:
        """What goes to standard output: text, or the one format that is not written to a folder."""
        return self.formats[0] if self.formats and self.output is None else "text"

    def check(self, formats: Sequence[str]) -> None:
        """Refuse formats that an answer does not have, and several where only one can be printed."""
        if unknown := [name for name in self.formats if name not in formats]:
            raise click.UsageError(f"this answer has no format {unknown[0]}: choose from {', '.join(formats)}")
        if self.output is None and len(self.formats) > 1:
            raise click.UsageError("several formats need a folder: add --output")


search_options = declared_group("search", SearchOptions, "Choice")
goal_options = OptionGroup("goal", GoalOptions, limit_options.only("max_drop", "min_sqnr_db").options)
#: Kinds of search, and of what only some of them take, which.
KINDS = ("sensitivity", "fallback", "calibrations", "debugger")
_TAKEN_BY = {
    "runs": ("sensitivity",),
    "resume": ("sensitivity",),
    "methods": ("calibrations",),
    "max_drop": ("fallback",),
    "min_sqnr_db": ("fallback",),
    "toolchain": ("fallback", "calibrations"),
    "formats": ("fallback", "calibrations"),
    "device": ("sensitivity", "fallback"),
    "cluster": ("sensitivity", "fallback"),
    "verbose": ("sensitivity", "debugger"),
    **dict.fromkeys(("denylists", "layer_metrics", "pair_metrics", "output_metrics", "thresholds"), ("debugger",)),
}


def _threshold(text: str) -> str:
    """A number alone is the threshold of suspicion."""
    if "=" in text or Path(text).exists():
        return text
    try:
        return f"{SUSPECT}={float(text)}"
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no number; write an error in steps, such as 0.5, or NAME=VALUE "
            "(quantmedic explain --list thresholds lists the names)",
            param_hint="--threshold",
        ) from error


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("kind", type=click.Choice(KINDS), metavar="KIND")
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FLOAT [QUANT]")
@search_options
@data_options
@goal_options
@judging_options.only("toolchain")
@rule_options.only("thresholds")
@measuring_options.only("threads", "timeout", "device")
@spread_options.only("cluster")
@resume_option
@click.pass_context
def search(
    context: click.Context,
    /,
    kind: str,
    models: Sequence[Path],
    search: SearchOptions,
    data: DataOptions,
    goal: GoalOptions,
    judging: JudgingOptions,
    rules: RuleOptions,
    measuring: MeasuringOptions,
    spread: SpreadOptions,
    resume: bool,
) -> None:
    """Search the layers of a pair, or the calibrations of FLOAT, by running them.

    \b
    sensitivity   what each layer does to the output, alone and together
    fallback      a small set of layers that leave int8 to meet --max-drop or --min-sqnr
    calibrations  the best one of ort (of ONNX models), litert (of LiteRT) or mct (of PyTorch)
    debugger      each operator alone, as LiteRT's QuantizationDebugger measures it

    Exit codes: 0 found, 1 no set of layers meets the goal, 2 could not do its job, 130 Ctrl-C.

    \b
    Examples:
      quantmedic search sensitivity float.onnx int8.onnx -v val.npz -o report
      quantmedic search fallback float.onnx int8.onnx -v val.npz --min-sqnr 30
      quantmedic search calibrations float.onnx -r rep.npz -v val.npz
    """
    others = {name for name, kinds in _TAKEN_BY.items() if kind not in kinds}
    refuse_options(context, others, f"means nothing to {kind}")
    if len(models) != (1 if kind == "calibrations" else 2):
        wanted = "FLOAT alone" if kind == "calibrations" else "FLOAT and QUANT"
        raise click.UsageError(f"{kind} takes {wanted}")
    float_model, quantized_model = models[0], models[-1]
    match kind:
        case "sensitivity":
            _search_sensitivity(float_model, quantized_model, search, data, measuring, spread, resume)
        case "fallback":
            _search_fallback(float_model, quantized_model, search, data, measuring, goal, spread, judging)
        case "calibrations":
            _search_calibrations(float_model, search, data, measuring, judging)
        case _:
            own = RuleOptions(thresholds=[*map(_threshold, rules.thresholds)])
            _debug(float_model, quantized_model, search, data, measuring, own)


def _search_sensitivity(
    float_model: Path,
    quantized_model: Path,
    search: SearchOptions,
    data: DataOptions,
    measuring: MeasuringOptions,
    spread: SpreadOptions,
    resume: bool,
) -> None:
    folder = search.output or Path("report")
    checkpoint = folder / "sensitivity.json"
    modes = [mode for mode in MODES if search.runs in (mode, "all")]
    try:
        with progress_bars() as progress:
            record = measure_sensitivity(
                float_model,
                quantized_model,
                data,
                measuring,
                CheckpointOptions(checkpoint, resume),
                spread.cluster,
                modes=modes,
                progress=progress,
            )
    except SensitivityInterrupted as interrupt:
        record = interrupt.record
        print_line(f"interrupted: {checkpoint} holds {len(record.runs)} of {len(record.planned)} runs", err=True)
        print_line("help: add --resume to continue", err=True)
        raise click.exceptions.Exit(interrupted_status()) from None
    files = write_search(record, folder)
    print_report(render_search(record, verbose=search.verbose, ascii_only=ascii_only()))
    print_line("")
    print_line(wrote_text(files))


def _search_fallback(
    float_model: Path,
    quantized_model: Path,
    search: SearchOptions,
    data: DataOptions,
    measuring: MeasuringOptions,
    goal: GoalOptions,
    spread: SpreadOptions,
    judging: JudgingOptions,
) -> None:
    search.check(("text", "json"))
    with progress_bars() as progress:
        record = search_fallback(
            float_model,
            quantized_model,
            data,
            measuring,
            goal,
            spread.cluster,
            toolchain=judging.toolchain,
            progress=progress,
        )
    is_json = search.printed_format == "json"
    print_report(search_json(record) if is_json else render_search(record, ascii_only=ascii_only()))
    if search.output is not None:
        files = write_search(record, search.output, formats=search.formats or ("text", "json"))
        print_line("")
        print_line(wrote_text(files))
    if record.interrupted:
        print_line("interrupted", err=True)
        raise click.exceptions.Exit(interrupted_status())
    raise click.exceptions.Exit(0 if record.verdict in ("met", "unsure") else 1)


def _search_calibrations(
    float_model: Path, search: SearchOptions, data: DataOptions, measuring: MeasuringOptions, judging: JudgingOptions
) -> None:
    formats = DEFAULT_FORMATS[CalibrationsRecord]
    search.check(formats)
    methods = [name.strip() for name in (search.methods or "").split(",") if name.strip()]
    with progress_bars() as progress:
        record = search_calibrations(
            float_model, data, measuring, toolchain=judging.toolchain, methods=methods, progress=progress
        )
    texts = {"json": search_json, "markdown": search_markdown}
    printed = texts.get(search.printed_format)
    print_report(printed(record) if printed else render_search(record, ascii_only=ascii_only()))
    if search.output is not None:
        files = write_search(record, search.output, formats=search.formats or formats)
        print_line("")
        print_line(wrote_text(files))


def _debug(
    float_model: Path,
    quantized_model: Path,
    search: SearchOptions,
    data: DataOptions,
    measuring: MeasuringOptions,
    rules: RuleOptions,
) -> None:
    metrics = DebuggerMetrics(
        _parse_functions(search.layer_metrics, "--layer-metric"),
        _parse_functions(search.pair_metrics, "--pair-metric"),
        _parse_functions(search.output_metrics, "--output-metric"),
    )
    base = rules_in_force(rules)
    with progress_bars() as progress:
        record = debug_pair(
            float_model, quantized_model, data, metrics, measuring, base, denylists=search.denylists, progress=progress
        )
    print_report(render_search(record, verbose=search.verbose, ascii_only=ascii_only()))
    if search.output is not None:
        alone = search.output.suffix == ".csv"
        files = [write_layers(record, search.output)] if alone else write_search(record, search.output)
        print_line(wrote_text([(file.path, file.size) for file in files]))


def _parse_functions(texts: Sequence[str], option: str) -> Mapping[str, str]:
    """``NAME=module:function`` by name."""
    functions: dict[str, str] = {}
    for text in texts:
        name, equals, function = text.partition("=")
        if not (name and equals and function):
            raise click.BadParameter(f"{text!r} is not NAME=module:function", param_hint=option)
        if name in functions:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        functions[name] = function
    return functions
