"""What a user may set for a run: each option is declared here once.

The command line makes its options of these fields (`quantmedic.cli.options`), Python its arguments and their
docstrings (`quantmedic.api.arguments`, `quantmedic.api.keywords`), and language models what they refuse
(`quantmedic.api.language_models`). Nothing here is slow to import.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from quantmedic.engine.case.facts import Role

if TYPE_CHECKING:
    from quantmedic.collectors.data.preprocessing import Preprocessing

#: Path of a model file, ``module:function`` that returns a model, or a ``torch.nn.Module``.
ModelSource = object
#: Path of an ``.npz`` file or a folder, ``module:function``, an array, a mapping of input names to arrays, or batches.
DataSource = object
#: Path of an ``.npz`` or ``.npy`` file, an array, or a mapping of output names to arrays.
OutputSource = object
#: Path of a folder or an ``.npz``, or a mapping of names of tensors to arrays.
TensorSource = object
#: Path of a file of texts or token ids, an array of ids ``[texts, tokens]``, or a list with one array per text.
TokenSource = object
#: ``module:function``, or the function itself, which returns one number.
MetricSource = str | Callable[..., float]
#: How much of each tensor is measured.
MeasuringMode = Literal["exact", "fast"]
#: Models on the way from float to quantized by name, in the order of the toolchain.
Stages = Mapping[str, str | Path] | Sequence[tuple[str, str | Path]]
#: Trials of remedies where no time is given: as many runs as two cores make in about so many seconds.
DEFAULT_BUDGET = 60.0
#: What leads is tried in about as many runs as measuring took, but no less than two cores make in so many seconds.
FIRST_SECONDS = 10.0
#: Environment variable that leaves this out wherever nothing else is asked.
NO_PROVE = "QUANTMEDIC_NO_PROVE"


#: Of what language models do not take, what stands in its place.
_TEXTS = "texts go with --tokens"
_METRIC = "perplexity, divergence and same first token are always measured; budgets of a policy bound them"
_ONE_BLOCK = "one block and one text are in memory at a time; --text-length makes texts shorter"
_PREPARED = "token ids need no preparation; tokenizer.json beside FLOAT reads texts"
_OUTPUTS = "outputs of devices and frameworks are compared of models that run as a whole, such as ONNX"
_BLOCKS = "the noise that each block makes is always measured"
_TRIED = "the output layer, the embedding and the worst block are always tried with their float weights"
#: Of what rules and a search take.
_THRESHOLDS = "Override a threshold, or those in a YAML file; repeat."
_NAMED_FUNCTION = "NAME=module:function"
_NOT_DRAWN = "nothing is drawn at random, and nothing has pictures"


@dataclass(frozen=True)
class Option:
    """How a field is offered: on the command line, to Python, and of language models.

    Attributes:
        help: What it does, in one or two sentences.
        flags: How it is typed, separated by blanks; by default ``--`` and the name of the field.
        takes: What stands for its value in the help, such as FILE; by default what the type of the field says.
        kind: How a text becomes its value where the type does not say it: a key of ``quantmedic.cli.values.KINDS``.
        daily: ``--help`` shows it; others are in ``--help-all``.
        python: What the docstring says, where Python takes other values than the command line.
        instead: Why language models do not take it; empty where they do.
        of_failure: It is taken where quantization failed and there is no quantized model.
        typed: The command line has it, too.
    """

    help: str
    flags: str = ""
    takes: str | None = None
    kind: str = ""
    daily: bool = False
    python: str = ""
    instead: str = ""
    of_failure: bool = False
    typed: bool = True

    def typed_as(self, name: str) -> list[str]:
        """How the option of a field is typed, the main way first."""
        return self.flags.split() or [f"--{name.replace('_', '-')}"]

    def field(self, default: object = None) -> Any:
        """A field of a group that is offered so; ``dict`` as its default makes an empty one."""
        own = {"option": self}
        return field(default_factory=dict, metadata=own) if default is dict else field(default=default, metadata=own)


def declared_options(kind: type) -> dict[str, Option]:
    """The options that a group declares, by the names of its fields."""
    return {each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata}


@dataclass(frozen=True)
class DataOptions:
    """The data that both models are run on, and the metric that their outputs are judged by."""

    representative: DataSource | None = Option(
        "Calibration data: .npz, folder, or module:function.",
        "--representative -r",
        "DATA",
        daily=True,
        instead=f"{_TEXTS}; what calibrated the model is not read",
        of_failure=True,
    ).field()
    validation: DataSource | None = Option(
        "Evaluation data: .npz, folder, or module:function.",
        "--validation -v",
        "DATA",
        daily=True,
        instead=_TEXTS,
    ).field()
    labels: str | Path | None = Option(
        "Labels of the evaluation data (.npy, .txt, .csv).",
        daily=True,
        python="Labels of the validation data, where they are not part of it.",
        instead="the next token is the label",
    ).field()
    samples: int | None = Option(
        "At most this many samples of each data set.",
        instead="--text-length bounds the tokens of a text; give a file with fewer texts",
        of_failure=True,
    ).field()
    preprocessing: "Mapping[Role, Preprocessing]" = Option(
        "Prepare as in training, such as scale=255, mean=0.485, std=0.229; values are divided by scale first. "
        "Also layout=NHWC, channel_order=BGR and resize=H,W. Of one data set: validation.mean=0.5; repeat.",
        "--preprocess -p",
        "KEY=VALUE",
        kind="texts",
        daily=True,
        python='``quantmedic.Preprocessing`` of all data, or by role (``{"representative": …}``), for stored data '
        "that is not yet what the network wants: ``Preprocessing(scale=255, mean=(0.5,), std=(0.5,))``.",
        instead=_PREPARED,
        of_failure=True,
    ).field(dict)
    metric: str | None = Option(
        "Task metric, such as top1, map, miou, cer or module:function; see: quantmedic explain metrics. "
        "[default: top1, of boxes map]",
        takes="NAME",
        daily=True,
        python="A built-in metric such as top1, map, miou or cer (page ``metrics``), or ``module:function``; top1 "
        "where labels are classes, map where they are boxes of a detector.",
        instead=_METRIC,
    ).field()
    metric_direction: str | None = Option(
        "``higher`` or ``lower`` is better, for a function without ``higher_is_better``.",
        instead=_METRIC,
        typed=False,
    ).field()
    metric_output: str | None = Option(
        "Output that a built-in metric reads, for boxes their names separated by commas; the first, or "
        "those that look like boxes, scores and classes, by default.",
        instead=_METRIC,
        typed=False,
    ).field()
    metric_options: Mapping[str, str] = Option(
        "Option of the metric, such as nms=0.5 of map; of any, direction=lower and output=NAME; repeat.",
        "--metric-option",
        "KEY=VALUE",
        python='Options of a built-in metric, such as ``{"blank": "28"}`` of cer.',
        instead=_METRIC,
    ).field(dict)

    @property
    def sources(self) -> dict[Role, DataSource]:
        """The data sets that were given, by role."""
        sources: dict[Role, DataSource] = {}
        if self.representative is not None:
            sources["representative"] = self.representative
        if self.validation is not None:
            sources["validation"] = self.validation
        return sources

    @property
    def evaluation(self) -> Role | None:
        """The one data set of functions that read one: the evaluation data, else the calibration data."""
        return next(reversed(self.sources), None)


@dataclass(frozen=True)
class TextOptions:
    """The texts that language models are run on, and how many tokens of each; None is 512."""

    tokens: TokenSource | None = Option(
        "Texts that both language models are run on; .jsonl with text or input_ids, .npz or .npy of token ids "
        "[texts, tokens], or plain text; text needs tokenizer.json beside FLOAT.",
        takes="FILE",
        kind="path",
        daily=True,
        python="Of language models, in place of data: the texts that both are run on, as a file of texts or token "
        "ids, an array of ids ``[texts, tokens]``, or a list with one array per text.",
    ).field()
    weights_only: bool = Option("Compare the weights of two checkpoints, and run neither.", daily=True).field(False)
    text_length: int | None = Option(
        "Tokens that are used of each text. [default: 512]", takes="N", kind="at least 2"
    ).field()


@dataclass(frozen=True)
class MeasuringOptions:
    """How models are run and what is measured.

    ``timeout`` is in seconds and limits each run of a model; 0 is no limit, None the usual one (``RUN_SECONDS``).
    """

    mode: MeasuringMode = Option(
        "fast measures tensors on 32 random samples or one of 32, at little more than the cost of inference; "
        "outputs and accuracy on all.",
        python="``exact`` measures every tensor on every sample; ``fast`` on one random sample of 32, and at least "
        "on 32 of them, at little more than the cost of inference: both models run as they are on all others, of "
        "which only network inputs and outputs are measured.",
        instead=_ONE_BLOCK,
    ).field("exact")
    batch_size: int | None = Option(
        "Samples per run. [default: what suits the processor's cache]", instead=_ONE_BLOCK
    ).field()
    threads: int | None = Option("Processor threads. [default: all cores]").field()
    timeout: float | None = Option(
        "Time that one run of a model may take, on one batch; opening it counts as one. 0 or never: no limit. "
        "[default: 10m]",
        takes="TIME",
        kind="limit",
        python="Seconds that one run of a model may take, on one batch; 600 by default, 0 is no limit. What takes "
        "longer is stopped; native code that cannot be stopped runs on in the background until the process ends.",
        instead="Ctrl-C ends a run, and the same command goes on from there",
    ).field()
    memory: int | None = Option(
        "Take no more than SIZE beyond the opened models: fewer batches side by side, fewer tensors at a "
        "time; of torch modules it bounds the observed tensors. [default: a quarter of the free memory]",
        takes="SIZE",
        kind="bytes",
        python="Bytes that the run may take beyond what is resident once the models are open; a quarter of the "
        "free memory by default. Samples of a batch, batches side by side and tensors at a time follow from it "
        "(page ``memory``); of torch modules it bounds the observed tensors only.",
        instead=_ONE_BLOCK,
    ).field()
    device: str | None = Option(
        "Run both models on cpu, cuda or cuda:1; torch modules and language models also on mps or xpu. "
        "[default: where they are, checkpoints on the processor]",
        takes="NAME",
        python="Where both models run, by default where they are: of torch modules any device of torch, such as "
        "``cuda:1`` or ``mps``, to which both are moved and where they stay; of checkpoints of language models "
        "the same, one block at a time, by default the processor; of ONNX models ``cuda``, with onnxruntime-gpu. "
        "Notices in the case tell what ran where.",
    ).field()
    seed: int = Option(
        "Seed of random samples and bootstrapped intervals.", kind="at least 0", instead=_NOT_DRAWN
    ).field(0)
    step_error: bool = Option(
        "Also measure each quantized operator on what the deployed model computed before it, as LiteRT's "
        "QuantizationDebugger does; costs one more run.",
        instead=_BLOCKS,
    ).field(False)
    thumbnails: bool = Option(
        "Keep small pictures of a few samples in case and report. [default: where they are images]",
        instead=_NOT_DRAWN,
    ).field(True)
    profile: bool = Option(
        "Also time both models and their operators; such reports differ from run to run.", instead=_BLOCKS
    ).field(False)
    attribution: bool = Option(
        "Divide the noise among its sources, and simulate what remedies recover. [default: yes]",
        python="Divide the noise among its sources and simulate what remedies recover: without it only the rules "
        "speak, and nothing is predicted.",
        instead=_BLOCKS,
    ).field(True)


@dataclass(frozen=True)
class ReferenceOptions:
    """What is known from elsewhere: outputs of the training framework and the device, models in between."""

    reference_outputs: OutputSource | None = Option(
        "Framework's outputs on the evaluation data: .npz, .npy.",
        takes="FILE",
        python="Outputs of the training framework's model on the validation data, in their order: ``.npz``, "
        "``.npy``, an array, or a mapping of output names to arrays, samples along axis 0.",
        instead=_OUTPUTS,
    ).field()
    device_outputs: OutputSource | None = Option(
        "The device's outputs on the evaluation data: .npz, .npy.",
        takes="FILE",
        python="Outputs of the device on the validation data, in the same forms.",
        instead=_OUTPUTS,
    ).field()
    device_tensors: TensorSource | None = Option(
        "Tensors that the device computed on the first evaluation samples: folder of .npy, one subfolder of "
        ".raw or .npy per sample, .npz, or outputs that Polygraphy saved.",
        takes="PATH",
        python="Tensors that the device computed on the first samples of the validation data, to name the layer "
        "where it departs from the quantized model (page ``device-tensors``): a folder of ``.npy``, one subfolder "
        "of ``.raw`` or ``.npy`` for each sample, an ``.npz``, outputs that Polygraphy saved, "
        "or a mapping of names to arrays, samples along axis 0.",
        instead=_OUTPUTS,
    ).field()
    device_names: str | Path | Mapping[str, str] | None = Option(
        "Names of these tensors in the model: JSON or YAML of name: name.",
        takes="FILE",
        kind="text",
        python="Names of tensors of the model by their names in ``device_tensors``, where these are others: a "
        "mapping, or a file of JSON or YAML.",
        instead=_OUTPUTS,
    ).field()
    expected_float_metric: float | None = Option(
        "Float metric that you know from training; percent will do for shares.", takes="X", instead=_METRIC
    ).field()
    expected_quantized_metric: float | None = Option(
        "Quantized metric that another evaluation gave, such as your application's.", takes="X", instead=_METRIC
    ).field()
    stages: Stages = Option(
        "Model on the way to int8, in order; repeat.",
        "--stage",
        "NAME=FILE",
        python="Models between float and quantized in the order of the toolchain, by name.",
        instead=_OUTPUTS,
    ).field(())


@dataclass(frozen=True)
class ToolchainOptions:
    """What the toolchain was configured with and what it printed."""

    toolchain_logs: Sequence[str | Path] = Option(
        "What the toolchain printed; of Sony's toolkit the folder of mct.set_log_folder; repeat. Without QUANT: "
        "why there is none.",
        "--log --toolchain-log",
        "PATH",
        python="What the toolchain printed, as text files.",
        of_failure=True,
    ).field(())
    mct_log: str | Path | None = Option(
        "The folder given to ``mct.set_log_folder``, for the settings and for what the toolkit printed; one "
        "that is missing or belongs to another model causes a notice.",
        of_failure=True,
        typed=False,
    ).field()
    settings_files: Sequence[str | Path] = Option(
        "Files of the toolchain: configuration, log, table, encodings; repeat.",
        "--settings",
        "FILE",
        python="Configurations and results of the toolchain, in any of the formats that ``import_files`` reads: "
        "settings, recorded thresholds and reported figures, matched by name.",
    ).field(())
    core_config: object | None = Option(
        "The ``mct.core.CoreConfig`` that Sony's toolkit quantized with: its settings are judged too.",
        of_failure=True,
        typed=False,
    ).field()


#: How much is tried: seconds, what every machine tries, or only what leads.
Prove = float | bool | Literal["first"] | None


@dataclass(frozen=True)
class ProofOptions:
    """Trials of remedies, and prescriptions run as printed.

    Attributes:
        prove: Seconds for them; True: as much as is tried on every machine. ``first``: only what leads, in about as
            many runs as measuring took. None and False: nothing, unless ``write_fixed`` asks for it.
        write_fixed: File for the repaired model.
        toolchain: Whose prescriptions are run; None: the one that the quantized model carries marks of.
    """

    prove: Prove = Option(
        "Carry out remedies and the prescription, and measure what they recover. Unless told, `diagnose` and "
        "`demo` try only what leads.",
        kind="switch",
        daily=True,
        python="Seconds for carrying out the remedies of what is suspected: on copies of the quantized model, and "
        "by running the printed prescription with its toolchain where that is installed. What they recover is "
        "measured on samples that they were not fitted on. What is tried in given seconds depends on the machine; "
        'True tries as much on every machine, about a minute of two cores. ``"first"`` tries only what leads, '
        "which takes about as long as measuring. None and False try nothing.",
        instead=_TRIED,
    ).field()
    write_fixed: str | Path | None = Option(
        "Write the model with all proven remedies; implies --prove.",
        takes="FILE",
        kind="model",
        daily=True,
        python="Where to write the model that the best executed prescription gave, else the quantized model with "
        "all proven remedies; implies ``prove``.",
        instead=f"{_TRIED}; quantize again as the prescription says",
    ).field()
    toolchain: str | None = None

    def __post_init__(self) -> None:
        """Refuse a time in which nothing can be tried.

        Raises:
            ValueError: The seconds are not more than 0.
        """
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"prove is {self.prove!r}: give seconds above 0, True for the default, or False for none")

    @property
    def budget(self) -> float | None:
        """Seconds for all trials, counted ones unless `is_timed`; None where none are wanted, or only the first."""
        if self.is_timed and self.prove is not None:
            return float(self.prove)
        return DEFAULT_BUDGET if self.prove is True or self.write_fixed is not None else None

    @property
    def is_timed(self) -> bool:
        """The user gave a limit in seconds: the one clock that results may depend on."""
        return isinstance(self.prove, float | int) and not isinstance(self.prove, bool)

    @property
    def first(self) -> bool:
        """Only what leads is tried."""
        return self.budget is None and self.prove == "first" and not os.environ.get(NO_PROVE)


@dataclass(frozen=True)
class RuleOptions:
    """The user's rules and thresholds, and which rules are judged."""

    folders: Sequence[str | Path] = Option("Folder of your rules; repeat.", "--rules", "FOLDER").field(())
    select: Sequence[str] = Option("Judge only these: id, prefix, name or family.", takes="RULE").field(())
    ignore: Sequence[str] = Option("Leave these out; they are listed as ignored.", takes="RULE").field(())
    thresholds: Sequence[str] = Option(_THRESHOLDS, "--threshold", "NAME=VALUE|FILE").field(())


@dataclass(frozen=True)
class CollectOptions(ProofOptions, ToolchainOptions, ReferenceOptions, MeasuringOptions, TextOptions, DataOptions):
    """All that a measurement takes: the fields of its bases from the last one on, how to go on, and who works."""

    checkpoint: str | Path | None = Option(
        "Case file that is written every half minute and on Ctrl-C, so that no measurement is lost.", typed=False
    ).field()
    resume: bool = Option(
        "Continue from the unfinished work that an interrupted run left in the output.",
        python="Continue from the unfinished case in ``checkpoint``, if there is one.",
    ).field(False)
    cluster: object | None = Option(
        "Workers that measure and prove: local, local:4, tcp://HOST:8786 or scheduler.json of Dask.",
        takes="WHERE",
        python="Workers that measure and prove: ``local``, ``local:4``, the address of a Dask scheduler, its "
        "``scheduler.json``, or a ``distributed.Client`` (page ``cluster``).",
    ).field()
    mapping: Mapping[str, str] | None = Option(
        "Of torch modules, float layers with their quantized counterparts by name, where structure and names "
        "leave open what belongs together.",
        instead="layers are matched by the names of their weights",
        typed=False,
    ).field()

    def for_repaired(self) -> "CollectOptions":
        """The same for a model that was repaired: nothing is tried again, and no checkpoint is overwritten.

        The device has computed the tensors of the first model. What calibrated that did not calibrate this one, so
        validation data judge alone where there are any.
        """
        representative = self.representative if self.validation is None else None
        kept = replace(self, representative=representative, device_tensors=None, device_names=None)
        return replace(kept, prove=None, write_fixed=None, toolchain=None, checkpoint=None, resume=False)


def options_of_failure() -> set[str]:
    """Names of the options that are taken where quantization failed and there is no quantized model."""
    return {name for name, option in declared_options(CollectOptions).items() if option.of_failure}


#: A limit of ``check``, and the goal of a search.
MAX_DROP = Option(
    "Largest drop of the metric that passes, in points of a share; of others in their own unit; needs labels.",
    takes="N",
    daily=True,
    python="Goal of ``fallback``: the metric may get worse by this against the float model, in points of a share (1.0 "
    "is 1 %), else in its own unit. Without labels, of the agreement with the float model's class.",
)
MIN_SQNR = Option(
    "Least SQNR of the worst output column, in dB.",
    "--min-sqnr",
    "DB",
    daily=True,
    python="Or: the least output SQNR in dB. Exactly one of the two goals is given.",
)
#: Threshold above which the error of a layer, in steps, is more than rounding.
SUSPECT = "clip_rmse_over_scale"
#: What is searched.
What = Literal["sensitivity", "fallback", "calibrations", "debugger"]
SEARCHES: tuple[What, ...] = get_args(What)
#: Options of every search.
_OF_ALL = frozenset(
    ("validation", "representative", "labels", "metric", "metric_direction", "metric_output", "metric_options")
) | {"preprocessing", "samples", "threads", "timeout", "seed"}
#: What each search takes.
TAKEN: dict[What, frozenset[str]] = {
    "sensitivity": _OF_ALL | {"modes", "batch_size", "device", "cluster"},
    "fallback": _OF_ALL | {"max_drop", "min_sqnr_db", "device", "toolchain", "cluster"},
    "calibrations": _OF_ALL | {"methods", "toolchain"},
    "debugger": _OF_ALL | {"layer_metrics", "pair_metrics", "output_metrics", "threshold", "denylists"},
}


@dataclass(frozen=True)
class SearchOptions(CollectOptions):
    """What searches take, whatever is searched; ``TAKEN`` says which takes what."""

    modes: Sequence[Literal["one", "all-but-one", "cumulative"]] = Option(
        "sensitivity: one layer quantized, all but one, or all up to one; repeat. [default: all]",
        "--runs",
        daily=True,
        python="Runs of ``sensitivity``: ``one`` layer quantized, ``all-but-one``, ``cumulative`` from the input; "
        "all by default.",
    ).field(())
    max_drop: float | None = MAX_DROP.field()
    min_sqnr_db: float | None = MIN_SQNR.field()
    methods: Sequence[str] = Option(
        "calibrations: only these, such as entropy,percentile 99.99. [default: all]",
        takes="NAME,…",
        kind="texts",
        daily=True,
        python="Only these methods of ``calibrations``, by name, such as ``percentile 99.99``; all by default.",
    ).field(())
    threshold: float | None = Option(
        _THRESHOLDS,
        "--threshold",
        "NAME=VALUE|FILE",
        kind="texts",
        python="Error in steps, √mean_squared_error / scale, above which ``debugger`` suspects a layer; 0.7 by "
        "default.",
    ).field()
    denylists: Sequence[str] = Option(
        "debugger: evaluate with these layers in float; names of tensors, suspected, first and op:TYPE, separated "
        "by commas, or @FILE; repeat.",
        "--denylist",
        "NAMES",
        daily=True,
        python="What ``debugger`` leaves in float, one evaluation each: names of tensors, ``suspected``, "
        "``first``, and ``op:TYPE``, separated by commas, or ``@FILE`` with a name per line or a "
        "``denylist.json``.",
    ).field(())
    layer_metrics: Mapping[str, MetricSource] = Option(
        "debugger: of the difference quantized - float of each sample; repeat.",
        "--layer-metric",
        _NAMED_FUNCTION,
        python="Functions of ``debugger`` of the difference ``quantized - float`` by name, each given as "
        "``module:function`` or as the function itself; they return one number.",
    ).field(dict)
    pair_metrics: Mapping[str, MetricSource] = Option(
        "debugger: of (float, codes, scale, zero_point) of each sample; repeat.",
        "--pair-metric",
        _NAMED_FUNCTION,
        python="The same of ``(float, codes, scale, zero_point)``, codes as they are stored.",
    ).field(dict)
    output_metrics: Mapping[str, MetricSource] = Option(
        "debugger: of (float_outputs, quantized_outputs) of each sample; repeat.",
        "--output-metric",
        _NAMED_FUNCTION,
        python="The same of ``(float_outputs, quantized_outputs)``, two lists of arrays.",
    ).field(dict)
