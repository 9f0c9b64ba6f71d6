"""The options that say which data there are, how they are prepared, and which metric judges them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click

from quantmedic.api.options import DataOptions, TextOptions
from quantmedic.cli.groups import OptionGroup, option
from quantmedic.collectors.data.preprocessing import parse_preprocessing
from quantmedic.engine.errors import DataError

PREPROCESSING = {
    "mean": option("--mean", multiple=True, metavar="[ROLE=]M,…", help="Subtract; ROLE: representative or validation."),
    "std": option("--std", multiple=True, metavar="[ROLE=]S,…", help="Divide by, after the mean."),
    "scale": option("--scale", multiple=True, metavar="[ROLE=]X", help="Divide stored values by X first (255: 0…1)."),
    "layout": option("--layout", multiple=True, metavar="[ROLE=]NCHW|NHWC", help="Layout of the stored arrays."),
    "channel_order": option(
        "--channel-order", multiple=True, metavar="[ROLE=]RGB|BGR", help="Channel order the network wants."
    ),
    "resize": option("--resize", multiple=True, metavar="[ROLE=]H,W", help="Resize image files."),
}


class _DataArguments(TypedDict, total=False):
    representative: str | None
    validation: str | None
    labels: Path | None
    samples: int | None
    metric: str | None
    metric_direction: str | None
    metric_output: str | None


def _metric_options(given: Sequence[str]) -> dict[str, str]:
    """Options of the metric by name; raises `DataError` for what is not of the form KEY=VALUE."""
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, _) in zip(given, pairs, strict=True):
        if not name or not equals:
            raise DataError(
                "option of the metric cannot be read",
                where=f"--metric-option {text}",
                help="write --metric-option KEY=VALUE, such as --metric-option blank=28",
            )
    return {name: value for name, _, value in pairs}


def _data_options(
    *,
    mean: Sequence[str] = (),
    std: Sequence[str] = (),
    scale: Sequence[str] = (),
    layout: Sequence[str] = (),
    channel_order: Sequence[str] = (),
    resize: Sequence[str] = (),
    metric_option: Sequence[str] = (),
    **given: Unpack[_DataArguments],
) -> DataOptions:
    declared = {
        "mean": mean,
        "std": std,
        "scale": scale,
        "layout": layout,
        "channel-order": channel_order,
        "resize": resize,
    }
    prepared = parse_preprocessing({n: v for n, v in declared.items() if v})
    return DataOptions(preprocessing=prepared, metric_options=_metric_options(metric_option), **given)


data_options = OptionGroup(
    "data",
    _data_options,
    {
        "representative": option(
            "--representative", "-r", metavar="DATA", help="Calibration data: .npz, folder, or module:function."
        ),
        "validation": option(
            "--validation", "-v", metavar="DATA", help="Evaluation data: .npz, folder, or module:function."
        ),
        "labels": option(
            "--labels", type=click.Path(path_type=Path), help="Labels of the evaluation data (.npy, .txt, .csv)."
        ),
        "samples": option("--samples", type=click.IntRange(1), help="At most this many samples of each data set."),
        "metric": option(
            "--metric",
            metavar="NAME",
            help="top1, top5, mae, rmse, map, map50, miou, f1, f1-binary, cer, wer, recall@K, perplexity or "
            "module:function; see: quantmedic explain metrics. [default: top1, of boxes map]",
        ),
        "metric_direction": option(
            "--metric-direction", type=click.Choice(["higher", "lower"]), help="Which way is better."
        ),
        "metric_output": option(
            "--metric-output", metavar="NAME", help="Output that the metric reads. [default: the first]"
        ),
        "metric_option": option(
            "--metric-option", multiple=True, metavar="KEY=VALUE", help="Option of the metric, such as nms=0.5 of map."
        ),
        **PREPROCESSING,
    },
)

text_options = OptionGroup(
    "texts",
    TextOptions,
    {
        "tokens": option(
            "--tokens",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Run language models on these texts: .jsonl with text or input_ids, .npz or .npy of token ids [texts, "
            "tokens], or plain text; text needs tokenizer.json beside FLOAT.",
        ),
        "text_length": option(
            "--text-length", type=click.IntRange(2), metavar="N", help="Tokens that are used of each text.  [512]"
        ),
    },
)
