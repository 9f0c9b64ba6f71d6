"""A quantization that gave no model: why, from the toolchain's log and the float model."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from quantmedic.api.imports import read_mct
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import models_of
from quantmedic.api.options import CollectOptions, DataSource, ModelSource
from quantmedic.api.rulebase import known_and_own_patterns, load_rulebase
from quantmedic.collectors.data.datasets import open_dataset
from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.statistics.spatial import IMAGE_CHANNELS
from quantmedic.collectors.toolchain_files.toolchain_log import facts_of_words, read_log_facts
from quantmedic.engine.case.facts import (
    FLOAT_ALONE,
    FailureFacts,
    FloatFacts,
    ModelFacts,
    Role,
    SearchFacts,
    SettingsFacts,
)
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.errors import DataError, QuantmedicError, RefusedModelError
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.version import VERSION

#: ``mode`` in the run record of such a case.
FAILED = "failed"
NO_FAILURE = "the log shows no failure: if a model was written, give it as QUANT, with data to judge it on"
#: Samples of one read.
_BATCH = 16


def collect_failed(
    float_model: ModelSource,
    *,
    toolchain_logs: Sequence[str | Path] = (),
    representative: DataSource | None = None,
    rules: RuleBase | None = None,
    preprocessing: Preprocessing | Mapping[Role, Preprocessing] | None = None,
    samples: int | None = None,
    core_config: object | None = None,
    mct_log: str | Path | None = None,
    progress: Watching = True,
) -> Case:
    """What is known where quantization failed; neither model nor log is run.

    The case is judged, saved and reported like any other; its verdict is ``failed``, or ``not-comparable`` where the
    log shows no failure.

    Args:
        float_model: Path of the float model, ONNX or LiteRT, a ``torch.nn.Module``, or ``module:function`` that
            returns one. One that cannot be read causes a notice; the log is read without it.
        toolchain_logs: What the toolchain printed, as text files; needed.
        representative: The data that it was to be calibrated with, see ``diagnose``: all of it is read, so that a
            missing or broken file is logged.
        rules: Rules whose ``logs.yaml`` holds patterns of toolchain logs; the built-in ones by default.
        preprocessing: ``Preprocessing`` of all data, or by role, see ``collect``.
        samples: At most this many samples are read.
        core_config: See ``collect``.
        mct_log: See ``collect``.
        progress: Called with a stage, the samples done and their number where known; see ``collect``.

    Raises:
        DataError: No log was given, or one cannot be read, or ``core_config`` is not a ``CoreConfig``.
        ModelError: A folder was given as the float model.
    """
    options = CollectOptions(
        representative=representative,
        samples=samples,
        preprocessing=preprocessing_by_role(preprocessing),
        toolchain_logs=toolchain_logs,
        core_config=core_config,
        mct_log=mct_log,
    )
    with watching(progress) as told:
        return collect_failure(float_model, options, rules or load_rulebase(), told)


def collect_failure(float_model: ModelSource, options: CollectOptions, rules: RuleBase, progress: Progress) -> Case:
    """``collect_failed`` with its options as one record; see there."""
    mct = read_mct(None, options)
    logs = [*options.toolchain_logs, *(mct.logs if mct is not None else ())]
    if not logs:
        raise DataError(
            "there is neither a quantized model nor a log",
            help="give the quantized model as QUANT; if quantization failed, what the tool printed with --log FILE",
        )
    logged = read_log_facts(logs, *known_and_own_patterns(rules))
    model = _open_float(float_model)
    notices = [*model.notices, *([mct.notice] if mct is not None and mct.notice else [])]
    failure, data_notices = _with_data(logged.failure, model, options, progress)
    settings = logged.settings if mct is None else logged.settings.model_copy(update=_known_values(mct.settings))
    search = logged.search if mct is None else logged.search.model_copy(update=_known_values(mct.search))
    facts = {"framework": FLOAT_ALONE, "failure": failure, "search": search, "settings": settings}
    if not failure.failed:
        notices.append(NO_FAILURE)
    return _case_of(model, facts, [*notices, *data_notices], {"logs": [Path(log).name for log in logs]})


def collect_refusal(
    float_model: ModelSource, error: RefusedModelError, options: CollectOptions, rules: RuleBase, progress: Progress
) -> Case:
    """What is known where a quantized model was written that its runtime does not load: what that says of it."""
    logged, model = facts_of_words(error.words, known_and_own_patterns(rules)[0]), _open_float(float_model)
    known = {"line": error.words, **_known_values(logged.failure), "failed": True, "refused": True}
    failure, notices = _with_data(FailureFacts.model_validate(known), model, options, progress)
    facts = {"framework": FLOAT_ALONE, "failure": failure}
    return _case_of(
        model,
        facts,
        [*([error.help] if error.help else []), *model.notices, *notices],
        {"quantized_model": error.path.name},
    )


def _case_of(model: FloatModel, facts: Mapping[str, object], notices: Iterable[str], run: Mapping[str, object]) -> Case:
    record = CaseRecord.of_files(
        quantmedic_version=VERSION,
        model=model.facts.model_copy(update=facts),
        operators=(),
        notices=tuple(dict.fromkeys(notices)),
        run={
            "mode": FAILED,
            "float_model": model.facts.name,
            "float_sha256": sha256_of(model.files) if model.files else None,
            **run,
        },
    )
    return Case(record, {})


def _open_float(float_model: ModelSource) -> FloatModel:
    """The float model, in whatever form it was given; an error of the user's function becomes a notice."""
    try:
        (model,), notices = models_of(float_model)
    except QuantmedicError as error:
        problem = "; ".join([error.message, *error.where])
        facts = ModelFacts(name=str(float_model), float_model=FloatFacts(problem=problem))
        return FloatModel(facts, notices=(f"{float_model} was not read: {problem}",))
    found = front_end_of(model).read_float(model)
    return replace(found, notices=(*found.notices, *notices))


def _with_data(
    failure: FailureFacts,
    model: FloatModel,
    options: CollectOptions,
    progress: Progress,
) -> tuple[FailureFacts, list[str]]:
    """The failure with what reading all calibration data shows, and notices."""
    representative, declared = options.representative, options.preprocessing.get("representative")
    if representative is None:
        return failure, []
    if not model.inputs:
        return failure, ["the calibration data were not opened: the inputs of the float model are not known"]
    done = 0
    try:
        data = open_dataset(
            representative, model.inputs, preprocessing=declared or _any_fit(model.inputs), role="representative"
        )
        for batch in data.batches(_BATCH, options.samples):
            done += batch.samples
            progress("representative", done, data.samples)
    except DataError as error:
        problem = _without_folder("; ".join([error.message, *error.where]), representative)
        return failure.model_copy(update={"data_problem": problem, "data_samples": done}), []
    return failure.model_copy(update={"data_samples": done}), list(data.notices) if declared else []


def _any_fit(inputs: Sequence[InputSpec]) -> Preprocessing:
    """What makes whole pictures fit where nothing is declared: here they are opened, not judged."""
    shape = inputs[0].shape
    if len(shape) != 4:
        return Preprocessing(scale=1.0)
    height, width = shape[2:] if shape[1] in IMAGE_CHANNELS else shape[1:3]
    return Preprocessing(scale=1.0, resize=(height, width) if height and width else None)


def _without_folder(text: str, given: DataSource) -> str:
    """A complaint about a path as reports show it, which name no folders above it."""
    if not isinstance(given, str | Path):
        return text
    above = Path(given).expanduser().parent
    return text if above == Path(".") else text.replace(f"{above}{os.sep}", "")


def _known_values(facts: SettingsFacts | SearchFacts | FailureFacts) -> dict[str, object]:
    return facts.model_dump(exclude_none=True)
