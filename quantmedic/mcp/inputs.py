"""What each tool takes, with types, and the paths that it may name: those of the folder of the server."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from quantmedic.api.options import TAKEN, SearchOptions, What, declared_options
from quantmedic.engine.input_files import leads_out

_OPTIONS = declared_options(SearchOptions)


def inside(given: str) -> str:
    """A path as it is from the folder of the server, which is the current one.

    Raises:
        ValueError: It leads out of that folder.
    """
    root = Path.cwd()
    path = os.path.relpath(root / given, root)
    # A name that begins so would be taken for a home folder later on.
    if ".." in PurePath(given).parts or path.startswith("~") or leads_out(path, root):
        raise ValueError(f"{given!r} leads out of the folder of the server: name a path inside of it, without '..'")
    return path


def existing(given: str) -> str:
    """The same of a file or folder that is there; nothing below it leads out.

    Raises:
        ValueError: It is not there, or a link in it leads out.
    """
    path = inside(given)
    if not os.path.exists(path):
        raise ValueError(
            f"there is no {given!r} in the folder of the server; functions (module:function) are not run here: write "
            "what they return to a file"
        )
    if link := next((each for each in _links(path) if leads_out(each, Path.cwd())), None):
        raise ValueError(f"{link!r} is a link out of the folder of the server")
    return path


def _links(folder: str) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        yield from filter(os.path.islink, (os.path.join(place, name) for name in (*folders, *files)))


def _no_function(name: str) -> str:
    if ":" in name:
        raise ValueError("functions (module:function) are not run here: name a built-in metric, see explain metrics")
    return name


#: A file or folder that is read, and one that is written.
Read = Annotated[str, AfterValidator(existing)]
Written = Annotated[str, AfterValidator(inside)]


def _as_option(name: str, default: Any = None) -> Any:
    """A field that means what the option of this name does."""
    return Field(default=default, description=_OPTIONS[name].help)


class Inputs(BaseModel):
    """What a tool takes; a name that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class Data(Inputs):
    """The data that both models are run on."""

    representative: Read | None = Field(None, description="Calibration data: .npz, or a folder of arrays or images.")
    validation: Read | None = Field(None, description="Evaluation data, likewise; labels in it measure accuracy.")
    labels: Read | None = _as_option("labels")
    preprocessing: list[str] = Field(
        [],
        description=f"KEY=VALUE each; messages write quantmedic.Preprocessing(…). {_OPTIONS['preprocessing'].help}",
    )
    metric: Annotated[str, AfterValidator(_no_function)] | None = Field(
        None, description="Task metric, such as top1, map, miou or cer; top1 by default, of boxes map."
    )
    samples: PositiveInt | None = _as_option("samples")


class Diagnose(Data):
    """Find out why a quantized model is less accurate than its float model: measure both, rank the causes, run the
    first prescription, and write a report. Without quantized_model, toolchain_logs say why quantization failed."""

    float_model: Read = Field(description="Float model: .onnx, .tflite, .xml (OpenVINO), or a checkpoint.")
    quantized_model: Read | None = Field(None, description="Its quantized counterpart; none where quantization failed.")
    tokens: Read | None = _as_option("tokens")
    weights_only: bool = _as_option("weights_only", False)
    toolchain_logs: list[Read] = _as_option("toolchain_logs", [])
    settings_files: list[Read] = _as_option("settings_files", [])
    reference_outputs: Read | None = _as_option("reference_outputs")
    device_outputs: Read | None = _as_option("device_outputs")
    expected_float_metric: float | None = _as_option("expected_float_metric")
    expected_quantized_metric: float | None = _as_option("expected_quantized_metric")
    prove: bool = Field(False, description="Try remedies until one explains the loss, and not only what leads.")
    previous: Read | None = Field(None, description="Report or case from before a change: says what that brought.")
    toolchain: str | None = Field(None, description="Toolchain of the prescription, such as ort, mct or litert.")
    report: Written = Field("report", description="Folder for the report.")


class Fix(Data):
    """Carry out the prescription, measure what comes out, and write the model only if it is better. Language models
    are refused: their prescription is printed by diagnose."""

    float_model: Read = Field(description="Float model: .onnx, .tflite or .xml (OpenVINO).")
    quantized_model: Read = Field(description="Its quantized counterpart.")
    output: Written = Field(pattern=r"\.(onnx|tflite|xml)$", description="File for the repaired model.")
    prove: PositiveFloat | None = Field(None, description="Seconds for trials; as much as it takes by default.")
    toolchain: str | None = Field(None, description="Toolchain that makes the model, such as ort or litert.")
    report: Written = Field("repair", description="Folder for the reports before and after.")


class Check(Data):
    """Judge a pair, or a case that was measured before, by a policy or limits: ACCEPT, REGRESSION, INSUFFICIENT_DATA
    or ANOMALOUS. Without any, findings of high severity fail."""

    float_model: Read | None = Field(None, description="Float model; none where a case is given.")
    quantized_model: Read | None = Field(None, description="Its quantized counterpart.")
    case: Read | None = Field(None, description="In place of models and data: a case file or the folder of a report.")
    max_drop: float | None = _as_option("max_drop")
    min_agreement: float | None = Field(None, description="Least share of samples with the float model's class.")
    min_sqnr_db: float | None = _as_option("min_sqnr_db")
    config: Read | None = Field(None, description="Policy; the nearest quantmedic.toml by default.")
    baseline: Read | None = Field(None, description="Known findings, which do not fail.")
    report: Written | None = Field(None, description="Folder for the report; none is written by default.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.case is None) == (self.float_model is None) or (self.float_model is None) != (
            self.quantized_model is None
        ):
            raise ValueError("give float_model and quantized_model, or a case")
        if self.case is not None and (useless := sorted(self.model_fields_set & Data.model_fields.keys())):
            raise ValueError(f"a case is measured already: leave out {', '.join(useless)}")
        return self


class Search(Data):
    """Search by running the models: sensitivity of the layers; fallback, as few layers in float as meet max_drop or
    min_sqnr_db; calibrations, the best one for float_model alone; debugger, each operator against its float twin."""

    what: What
    float_model: Read = Field(description="Float model: .onnx or .tflite.")
    quantized_model: Read | None = Field(None, description="Its quantized counterpart; not for calibrations.")
    max_drop: float | None = _as_option("max_drop")
    min_sqnr_db: float | None = _as_option("min_sqnr_db")
    methods: list[str] = _as_option("methods", [])
    modes: list[Literal["one", "all-but-one", "cumulative"]] = _as_option("modes", [])
    toolchain: str | None = Field(None, description="Of fallback and calibrations: ort, mct or litert.")
    report: Written = Field("search", description="Folder for the answer.")

    @model_validator(mode="after")
    def _takes_these(self) -> Self:
        own = TAKEN[self.what] | {"what", "float_model", "quantized_model", "report"}
        if useless := sorted(self.model_fields_set - own):
            raise ValueError(f"{self.what} does not take {', '.join(useless)}")
        if (self.quantized_model is None) != (self.what == "calibrations"):
            raise ValueError("calibrations takes float_model alone; the other searches take both models")
        return self


class Explain(Inputs):
    """What the manual says of a rule (D005), cause, fact, threshold, topic or word; index lists all pages."""

    word: str


#: The tools by name.
TOOLS: dict[str, type[Inputs]] = {each.__name__.lower(): each for each in (Diagnose, Check, Fix, Search, Explain)}
