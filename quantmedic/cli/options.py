"""Options that commands share, and what their values mean."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from quantmedic.engine.rules.rulebase import RuleBase

FORMATS = ("html", "markdown", "json", "png")
#: Formats of what is printed as well as written.
PRINTED_FORMATS = ("html", "markdown", "json", "text")
PREPARE = ("mean", "std", "scale", "layout", "channel-order", "resize")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Seconds(click.ParamType):
    """A time: ``90``, ``90s`` or ``5m``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", str(value).strip())
        seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"] if found else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is no time; write 90s or 5m", param, ctx)
        return seconds


class Bytes(click.ParamType):
    """A size: ``2GB``, ``500MB`` or bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(k|m|g|)b?", str(value).strip().lower())
        size = int(float(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[found[2]]) if found else 0
        if size <= 0:
            self.fail(f"{value!r} is no size; write 2GB or 500MB", param, ctx)
        return size


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in this order."""

    def apply(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


preprocessing_options = combined(
    click.option("--mean", multiple=True, metavar="[ROLE=]M,…", help="Subtract; ROLE: representative or validation."),
    click.option("--std", multiple=True, metavar="[ROLE=]S,…", help="Divide by, after the mean."),
    click.option("--scale", multiple=True, metavar="[ROLE=]X", help="Divide stored values by X first (255: 0…1)."),
    click.option("--layout", multiple=True, metavar="[ROLE=]NCHW|NHWC", help="Layout of the stored arrays."),
    click.option("--channel-order", multiple=True, metavar="[ROLE=]RGB|BGR", help="Channel order the network wants."),
    click.option("--resize", multiple=True, metavar="[ROLE=]H,W", help="Resize image files."),
)


validation_options = combined(
    click.option("--validation", "-v", metavar="DATA", help="Evaluation data: .npz, folder, or module:function."),
    click.option("--labels", type=click.Path(path_type=Path), help="Labels of the evaluation data (.npy, .txt, .csv)."),
    click.option("--metric", metavar="NAME", help="top1, top5, mae, rmse or module:function. [default: top1]"),
    click.option("--metric-direction", type=click.Choice(["higher", "lower"]), help="Which way is better."),
    click.option("--metric-output", metavar="NAME", help="Output that the metric reads. [default: the first]"),
    preprocessing_options,
)


data_options = combined(
    click.option("--representative", "-r", metavar="DATA", help="Calibration data: .npz, folder, or module:function."),
    validation_options,
    click.option("--samples", type=click.IntRange(1), help="At most this many samples of each set."),
    click.option(
        "--mode",
        type=click.Choice(["exact", "fast"]),
        default="exact",
        show_default=True,
        help="fast measures each tensor on a random slice of the samples, at little more than the cost of inference.",
    ),
    click.option("--batch-size", type=click.IntRange(1), help="Samples per run. [default: what suits the cache]"),
    click.option("--threads", type=click.IntRange(1), help="Processor threads. [default: all cores]"),
    click.option(
        "--memory",
        type=Bytes(),
        metavar="SIZE",
        help="Torch modules: observe as many layers at a time as fit in SIZE.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrapped intervals."),
    click.option("--reference-outputs", metavar="FILE", help="Framework's outputs on the evaluation data: .npz, .npy."),
    click.option("--device-outputs", metavar="FILE", help="The device's outputs on the evaluation data: .npz, .npy."),
    click.option("--expected-float-metric", type=float, metavar="X", help="Float metric that you know from training."),
    click.option(
        "--stage", "stages", multiple=True, metavar="NAME=FILE", help="Model on the way to int8, in order; repeat."
    ),
    click.option(
        "--toolchain-log",
        "--log",
        "toolchain_logs",
        multiple=True,
        metavar="FILE",
        help="What the toolchain printed; repeat. Without QUANT: why there is none.",
    ),
    click.option("--mct-log", metavar="FOLDER", help="What Sony's toolkit logged: the folder of mct.set_log_folder."),
    click.option(
        "--settings",
        "settings_files",
        multiple=True,
        metavar="FILE",
        help="What the toolchain was told or left behind: configuration, log, table, encodings; repeat.",
    ),
    click.option("--operator-error", is_flag=True, help="Also measure each operator on float inputs (one more run)."),
    click.option("--step-error", is_flag=True, help="Also measure each on deployed inputs, as LiteRT's debugger does."),
    click.option(
        "--thumbnails/--no-thumbnails",
        default=True,
        help="Keep small pictures of a few samples in case and report. [default: where they are images]",
    ),
)


profile_option = click.option(
    "--profile", is_flag=True, help="Also time both models and their operators; such reports differ from run to run."
)


resume_option = click.option(
    "--resume", is_flag=True, help="Go on with the case that an interrupted run left in the output."
)


rule_options = combined(
    click.option("--rules", "rule_folders", multiple=True, type=click.Path(path_type=Path), help="Your rules; repeat."),
    click.option("--select", multiple=True, metavar="RULE", help="Judge only these: id, prefix, name or family."),
    click.option("--ignore", multiple=True, metavar="RULE", help="Leave these out; they are listed as ignored."),
    click.option("--threshold", multiple=True, metavar="NAME=VALUE", help="Override a threshold; repeat."),
    click.option("--thresholds", "threshold_file", type=click.Path(path_type=Path), help="The same from a YAML file."),
)


report_options = combined(
    click.option(
        "--format", "formats", multiple=True, type=click.Choice(FORMATS), help="Repeat. [default: html markdown json]"
    ),
    click.option("--quiet", "-q", is_flag=True, help="Print the verdict only."),
    click.option("--verbose", is_flag=True, help="Print all layers."),
)


toolchain_option = click.option(
    "--toolchain",
    metavar="NAME",
    help="Write the prescription for: ort, mct, litert, tflite, inc, nncf, torchao, aimet, modelopt, horizon. "
    "[default: what the model carries marks of]",
)


previous_option = click.option(
    "--previous",
    metavar="CASE",
    type=click.Path(path_type=Path),
    help="Case file from before a remedy was applied: says what it brought, and ranks down what was in vain.",
)


prove_options = combined(
    click.option("--prove", is_flag=True, help="Carry out remedies on copies of the model: measure what they recover."),
    click.option("--budget", type=Seconds(), metavar="TIME", help="Time for --prove: 90, 90s or 5m. [default: 60s]"),
)
proof_options = combined(
    prove_options,
    click.option(
        "--write-fixed",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the model with all proven remedies, and diagnose it; implies --prove.",
    ),
)


output_option = click.option(
    "--output", "-o", type=click.Path(path_type=Path), default="report", show_default=True, help="Folder of the report."
)


#: Options of ``diagnose`` that say something of a float model whose quantization failed.
_OF_A_FAILURE = {
    "float_model",
    "quantized_model",
    "toolchain_logs",
    "mct_log",
    "representative",
    "samples",
    "toolchain",
}
_OF_A_FAILURE |= {"output", "formats", "quiet", "verbose", *(name.replace("-", "_") for name in PREPARE)}
_OF_A_FAILURE |= {"rule_folders", "select", "ignore", "threshold", "threshold_file"}


def parse_failure(context: click.Context, options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``quantmedic.collect_failed``; refuses those that need a quantized model."""
    if not options["toolchain_logs"] and not options["mct_log"]:
        raise click.UsageError(
            "there is neither QUANT nor a log: give the quantized model, or, where quantization failed, "
            "what the tool printed with --log FILE"
        )
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _OF_A_FAILURE
        and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(f"without QUANT there is nothing to judge by {', '.join(given)}: leave it out")
    taken = {name: options[name] for name in ("toolchain_logs", "mct_log", "representative", "samples")}
    return {**taken, "preprocessing": parse_preprocessing_options(options)}


def parse_data(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``quantmedic.collect``: the preprocessing ones are parsed into one value per role."""
    prepared = parse_preprocessing_options(options)
    stages = [_stage(text) for text in options.pop("stages")]
    return {**options, "preprocessing": prepared, "stages": stages}


def parse_preprocessing_options(options: dict[str, Any]) -> Any:
    """Preprocessing per role; takes its options out of the mapping."""
    from quantmedic.collectors.data.preprocessing import parse_preprocessing

    declared = {name: options.pop(name.replace("-", "_")) for name in PREPARE}
    return parse_preprocessing({name: values for name, values in declared.items() if values})


def parse_trials(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``quantmedic.collect`` for trials; takes them out of the mapping."""
    wanted, budget, fixed = options.pop("prove"), options.pop("budget"), options.pop("write_fixed", None)
    if budget is not None and not wanted and fixed is None:
        raise click.UsageError("--budget is the time for --prove, which is missing")
    from quantmedic.api.options import DEFAULT_BUDGET

    return {"prove": budget or DEFAULT_BUDGET if wanted or fixed is not None else None, "write_fixed": fixed}


def _stage(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise click.BadParameter(f"{text!r} is not NAME=FILE", param_hint="--stage")
    return name, path


def parse_rules(
    options: dict[str, Any],
    toolchain: str | None = None,
    load: "Callable[[Sequence[Path]], RuleBase] | None" = None,
) -> "RuleBase":
    """The rules in force; takes the options of ``rule_options`` out of the mapping. Refuses an unknown toolchain.

    ``load`` gives the rules of the user's folders, which options then choose from and bound; all of them by default.
    """
    from quantmedic import load_rulebase
    from quantmedic.api.thresholds import apply_thresholds

    base = (load or load_rulebase)(options.pop("rule_folders", ()))
    if toolchain is not None:
        from quantmedic.engine.rules.toolchain import find_toolchain

        find_toolchain(toolchain, base.toolchains)
    base = apply_thresholds(base, options.pop("threshold_file", None), options.pop("threshold", ()))
    return base.choose(options.pop("select", ()), options.pop("ignore", ()))


def require_folder(formats: Sequence[str], output: Path | None) -> None:
    """Refuse several formats where only one can be printed."""
    if output is None and len(formats) > 1:
        raise click.UsageError("several formats need a folder: add --output")
