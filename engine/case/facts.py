"""Facts: what was measured, typed and frozen. No verdict lives here.

Every field is one entry of the glossary: its description holds the formula, its unit stands beside it.
A field that was not measured is ``None``, never 0. The modules beside this one declare the facts by what they are
about; this one joins them into the scopes that rules range over, and is where they are imported from.
"""

from collections.abc import Mapping
from functools import cache

from pydantic.fields import FieldInfo

from quantmedic.engine.case.dataset_facts import DatasetFacts, RelationFacts
from quantmedic.engine.case.fact_base import ROLES, Facts, Pattern, Role, Scope
from quantmedic.engine.case.language_facts import BlockFacts, LanguageFacts
from quantmedic.engine.case.layer_facts import FusionFacts, KernelFacts, LayerFacts, ReportedFacts
from quantmedic.engine.case.model_facts import ModelFacts
from quantmedic.engine.case.output_facts import (
    AffineFacts,
    ComparisonFacts,
    DeviceFacts,
    MetricFacts,
    OutputColumnFacts,
    OutputFacts,
    OutputOperandFacts,
    StageFacts,
)
from quantmedic.engine.case.settings_facts import (
    FLOAT_ALONE,
    AskedFacts,
    CheckpointFacts,
    CoverageFacts,
    FailureFacts,
    FloatFacts,
    OverrideFacts,
    SearchFacts,
    SettingsFacts,
)
from quantmedic.engine.case.tensor_facts import (
    ClippingFacts,
    DeviceTensorFacts,
    DistributionFacts,
    ErrorFacts,
    OperandFacts,
    OutcomeFacts,
    QuantizerFacts,
    RecordedFacts,
    SourceFacts,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.case.weight_facts import BiasFacts, ConstantFacts, WeightErrorFacts, WeightFacts

__all__ = [
    "FLOAT_ALONE",
    "ROLES",
    "SCOPES",
    "AffineFacts",
    "AskedFacts",
    "BiasFacts",
    "BlockFacts",
    "CaseFacts",
    "CheckpointFacts",
    "ClippingFacts",
    "ComparisonFacts",
    "ConstantFacts",
    "CoverageFacts",
    "DatasetFacts",
    "DeviceFacts",
    "DeviceTensorFacts",
    "DistributionFacts",
    "ErrorFacts",
    "Facts",
    "FailureFacts",
    "FloatFacts",
    "FusionFacts",
    "KernelFacts",
    "LanguageFacts",
    "LayerFacts",
    "MetricFacts",
    "ModelFacts",
    "OperandFacts",
    "OutcomeFacts",
    "OutputColumnFacts",
    "OutputFacts",
    "OutputOperandFacts",
    "OverrideFacts",
    "Pattern",
    "QuantizerFacts",
    "RecordedFacts",
    "RelationFacts",
    "ReportedFacts",
    "Role",
    "Scope",
    "SearchFacts",
    "SettingsFacts",
    "SourceFacts",
    "StageFacts",
    "TensorDataFacts",
    "TensorFacts",
    "WeightErrorFacts",
    "WeightFacts",
    "fact_paths",
    "nested_facts",
]


class CaseFacts(Facts):
    """All facts of one case: the views that rules range over."""

    model: ModelFacts = ModelFacts()
    datasets: tuple[DatasetFacts, ...] = ()
    layers: tuple[LayerFacts, ...] = ()
    tensors: tuple[TensorFacts, ...] = ()
    operands: tuple[OperandFacts, ...] = ()
    outputs: tuple[OutputFacts, ...] = ()

    @property
    def without_data(self) -> bool:
        """No data set and no text was given: facts that are measured on data are missing for that reason."""
        if self.model.language.texts is not None:
            return False
        return bool(self.datasets) and all(own == DatasetFacts(role=own.role) for own in self.datasets)


SCOPES: dict[Scope, type[Facts]] = {
    "model": ModelFacts,
    "dataset": DatasetFacts,
    "layer": LayerFacts,
    "tensor": TensorFacts,
    "operand": OperandFacts,
    "output": OutputFacts,
}


def nested_facts(annotation: object) -> type[Facts] | None:
    """The ``Facts`` class that a field holds directly, or None for a leaf."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Facts) else None


@cache
def fact_paths(scope: Scope) -> Mapping[str, FieldInfo]:
    """Every dotted path that a rule of this scope may name, with its declaration."""
    paths = _paths_of(SCOPES[scope])
    if scope != "model":
        paths |= {f"model.{path}": field for path, field in _paths_of(ModelFacts).items()}
    return paths


def _paths_of(cls: type[Facts], prefix: str = "") -> dict[str, FieldInfo]:
    paths: dict[str, FieldInfo] = {}
    for name, field in cls.model_fields.items():
        nested = nested_facts(field.annotation)
        paths |= _paths_of(nested, f"{prefix}{name}.") if nested else {prefix + name: field}
    return paths
