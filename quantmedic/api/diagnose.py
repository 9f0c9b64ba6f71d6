"""The whole way in one call: measure, judge, write the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from quantmedic.api.arguments import CollectArguments
from quantmedic.api.cases import kept_where_there_is_room, load_case
from quantmedic.api.collect import collect
from quantmedic.api.failed import collect_failure
from quantmedic.api.judging import FORMATS, Diagnosis, check_toolchain, judge
from quantmedic.api.keywords import group_arguments
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.options import DataSource, ModelSource, options_of_failure
from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import DataError
from quantmedic.engine.rules.rulebase import RuleBase


def diagnose(
    float_model: ModelSource,
    quantized_model: ModelSource | None = None,
    *,
    representative: DataSource | None = None,
    validation: DataSource | None = None,
    rules: RuleBase | None = None,
    output: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
    previous: str | Path | None = None,
    toolchain: str | None = None,
    progress: Watching = True,
    **options: Unpack[CollectArguments],
) -> Diagnosis:
    """Find out why the quantized model is less accurate than the float one.

    Args:
        float_model: Path of the float model (ONNX, LiteRT, OpenVINO), or the float ``torch.nn.Module``; of language
            models the folder of the checkpoint or a ``.gguf`` file, or a module of ``transformers``, with ``tokens``.
        quantized_model: Path of its quantized counterpart, or that module. None where quantization failed: then
            ``toolchain_logs`` say why; see ``collect_failed``, which takes the options.
        representative: The data that calibrated it: ``.npz``, folder, ``module:function``, mapping or array; for
            modules also what yields batches of tensors, such as a ``DataLoader`` or a generator function.
        validation: The data that it is judged on, in the same forms.
        rules: Rules and thresholds; the built-in ones by default.
        output: Folder for the report; None writes nothing.
        formats: What to write there: html, markdown, json, png, model-explorer, metrics.
        previous: Case file, or folder of a report, from before a remedy was applied: what was tried without effect is
            named and ranked down.
        toolchain: Toolchain that the prescription is written for: ort, mct, litert, inc, horizon, aimet, fx, pt2e,
            torchao …; the one that the quantized model carries marks of by default.
        progress: See ``collect``.
        **options: Those of ``collect``, which ``help(quantmedic.collect)`` explains one by one: ``preprocessing``,
            ``metric``, ``samples``, ``memory`` and more. Unless ``prove`` says otherwise, it is ``"first"``: what
            leads is carried out, so that the answer is proven or says that it is not.

    Returns:
        The diagnosis: verdict, ranked causes with evidence and remedies, facts of all layers.

    Raises:
        QuantmedicError: A model, data set or rule cannot be used, or the report cannot be written.
    """
    base = rules or load_rulebase()
    check_toolchain(toolchain, base)
    past = load_case(previous) if previous is not None else None
    if quantized_model is None:
        case = _collect_failed(float_model, representative, validation, base, progress, **options)
    else:
        with_proof: CollectArguments = {"prove": "first", **options}
        case = collect(
            float_model,
            quantized_model,
            representative=representative,
            validation=validation,
            rules=base,
            toolchain=toolchain,
            progress=progress,
            **with_proof,
        )
    diagnosis = judge(case, base, previous=past, toolchain=toolchain)
    if output is not None:
        with kept_where_there_is_room(case):
            diagnosis.save(output, formats=formats)
    return diagnosis


def _collect_failed(
    float_model: ModelSource,
    representative: DataSource | None,
    validation: DataSource | None,
    base: RuleBase,
    progress: Watching,
    **options: Unpack[CollectArguments],
) -> Case:
    """A case without a quantized model; refuses what needs one."""
    if validation is not None:
        raise DataError(
            "there is no quantized model to judge on validation data",
            help="leave them out; what calibrated it goes with --representative",
        )
    if useless := sorted(options.keys() - options_of_failure()):
        raise DataError(
            "there is no quantized model, which these options need", where=", ".join(useless), help="leave them out"
        )
    given = group_arguments(representative, None, options)
    with watching(progress) as told:
        return collect_failure(float_model, given, base, told)
