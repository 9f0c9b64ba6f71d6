"""The keyword arguments of ``collect``, ``diagnose``, ``fix`` and ``search``, for type checkers.

Written by ``python tests/test_documents.py`` from the options in `quantmedic.api.options`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from quantmedic.api.options import (
    DataSource,
    MeasuringMode,
    MetricSource,
    OutputSource,
    Prove,
    Stages,
    TensorSource,
    TokenSource,
)
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


class SearchArguments(TypedDict, total=False):
    """Those that ``search`` explains one by one."""

    representative: DataSource | None
    validation: DataSource | None
    labels: str | Path | None
    samples: int | None
    preprocessing: "Preprocessing | Mapping[Role, Preprocessing] | None"
    metric: str | None
    metric_direction: str | None
    metric_output: str | None
    metric_options: Mapping[str, str] | None
    batch_size: int | None
    threads: int | None
    timeout: float | None
    device: str | None
    seed: int
    cluster: object | None
    toolchain: str | None
    modes: Sequence[Literal["one", "all-but-one", "cumulative"]]
    max_drop: float | None
    min_sqnr_db: float | None
    methods: Sequence[str]
    threshold: float | None
    denylists: Sequence[str]
    layer_metrics: Mapping[str, MetricSource] | None
    pair_metrics: Mapping[str, MetricSource] | None
    output_metrics: Mapping[str, MetricSource] | None
