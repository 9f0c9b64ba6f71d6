"""The pytest fixture ``quantmedic_check``: a test that fails where the quantized model got worse.

pytest finds it by itself where quantmedic is installed. Nothing of quantmedic is imported until a test asks for it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from typing import Unpack

    from quantmedic.api.arguments import CollectArguments
    from quantmedic.api.judging import Diagnosis
    from quantmedic.api.options import DataSource, ModelSource


@pytest.fixture
def quantmedic_check() -> "Callable[..., Diagnosis]":
    """Measures a pair, judges it by the policy, and fails the test as ``quantmedic check`` would.

    Examples:
        >>> def test_int8_is_as_good(quantmedic_check):
        ...     quantmedic_check("float.onnx", "int8.onnx", validation="val.npz", policy="quantmedic.toml")
    """
    return _check


def _check(
    float_model: "ModelSource",
    quantized_model: "ModelSource",
    *,
    representative: "DataSource | None" = None,
    validation: "DataSource | None" = None,
    policy: str | Path | None = None,
    **options: "Unpack[CollectArguments]",
) -> "Diagnosis":
    """The diagnosis of a pair that the policy accepts.

    Args:
        float_model: As for ``quantmedic.collect``, like all that follows but the policy.
        quantized_model: Its quantized counterpart.
        representative: The data that calibrated it.
        validation: The data that it is judged on.
        policy: File of the policy; by default the nearest ``quantmedic.toml``, or findings of high severity fail.
        **options: Options of ``quantmedic.collect``.

    Raises:
        Failed: The policy is violated; the text is that of ``quantmedic check``.
    """
    # Slow to import, and pytest loads this file in every project.
    import quantmedic
    from quantmedic.api.checks import policy_in_force
    from quantmedic.reports.terminal.check import render_check

    case = quantmedic.collect(
        float_model, quantized_model, representative=representative, validation=validation, **options
    )
    diagnosis = quantmedic.check(case, policy_in_force(Path(policy) if policy is not None else None))
    if diagnosis.check is not None and diagnosis.check.exit_code:
        pytest.fail(render_check(diagnosis, verbosity="normal"), pytrace=False)
    return diagnosis
