"""The keyword arguments of ``collect``, ``diagnose`` and ``fix``, for type checkers.

Written by ``python tests/test_documents.py`` from the options in `quantmedic.api.options`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from quantmedic.api.options import MeasuringMode, OutputSource, Prove, Stages, TensorSource, TokenSource
from quantmedic.engine.case.facts import Role

if TYPE_CHECKING:
    from quantmedic.collectors.data.preprocessing import Preprocessing


class CollectArguments(TypedDict, total=False):
    """Those that ``collect`` explains one by one."""

    labels: str | Path | None
    samples: int | None
    preprocessing: "Preprocessing | Mapping[Role, Preprocessing] | None"
    metric: str | None
    metric_direction: str | None
    metric_output: str | None
    metric_options: Mapping[str, str] | None
    tokens: TokenSource | None
    weights_only: bool
    text_length: int | None
    mode: MeasuringMode
    batch_size: int | None
    threads: int | None
    timeout: float | None
    memory: int | None
    device: str | None
    seed: int
    step_error: bool
    thumbnails: bool
    profile: bool
    attribution: bool
    reference_outputs: OutputSource | None
    device_outputs: OutputSource | None
    device_tensors: TensorSource | None
    device_names: str | Path | Mapping[str, str] | None
    expected_float_metric: float | None
    expected_quantized_metric: float | None
    stages: Stages
    toolchain_logs: Sequence[str | Path]
    mct_log: str | Path | None
    settings_files: Sequence[str | Path]
    core_config: object | None
    prove: Prove
    write_fixed: str | Path | None
    checkpoint: str | Path | None
    resume: bool
    cluster: object | None
    mapping: Mapping[str, str] | None
