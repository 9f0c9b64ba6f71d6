"""Settings as the real toolkit holds them."""

import pytest

torch = pytest.importorskip("torch")
mct = pytest.importorskip("model_compression_toolkit", reason="needs tests/mct/requirements.txt, see .ci/nightly")

from quantmedic.collectors.from_settings.mct_log import read_mct_log  # noqa: E402
from quantmedic.collectors.from_settings.mct_settings import read_core_config  # noqa: E402
from quantmedic.engine.case.facts import SearchFacts  # noqa: E402
from quantmedic.engine.errors import DataError  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.nightly]


def config(mixed: dict | None = None, **options):
    return mct.core.CoreConfig(
        quantization_config=mct.core.QuantizationConfig(**options),
        mixed_precision_config=mct.core.MixedPrecisionQuantizationConfig(**(mixed or {})),
    )


def test_defaults_of_the_version_that_the_manuals_speak_of() -> None:
    settings, search = read_core_config(config())
    assert settings.model_dump(exclude_none=True) == {
        "activation_error_method": "MSE",
        "weights_error_method": "MSE",
        "z_threshold": float("inf"),
        "min_threshold": 2**-16,
        "shift_negative": True,
        "shift_negative_ratio": 0.05,
        "channel_equalization": False,
        "bias_correction": True,
        "activation_bias_correction": False,
        "concat_threshold_update": False,
        "mixed_precision": False,
    }
    assert search == SearchFacts(), "without a search its number of images says nothing"


def test_what_was_set_is_read() -> None:
    given = config(z_threshold=8.0, activation_error_method=mct.core.QuantizationErrorMethod.NOCLIPPING)
    settings, _ = read_core_config(given)
    assert (settings.z_threshold, settings.activation_error_method) == (8.0, "NOCLIPPING")


def test_the_search_is_read_where_it_ran(net, batches) -> None:
    given = config({"num_of_images": 8, "distance_weighting_method": mct.core.MpDistanceWeighting.LAST_LAYER})
    target = mct.core.ResourceUtilization(weights_memory=1500)
    mct.ptq.pytorch_post_training_quantization(
        net, lambda: ([b] for b in batches), target_resource_utilization=target, core_config=given
    )
    settings, search = read_core_config(given)
    assert (settings.mixed_precision, settings.distance_weighting, settings.hessian_scores) == (
        True,
        "LAST_LAYER",
        False,
    )
    assert (search.images, search.toolchain) == (8, "Sony MCT")


def test_log_and_configuration_agree(net, batches, log_folder) -> None:
    given = config(z_threshold=9.0, shift_negative_ratio=0.3, activation_channel_equalization=True)
    mct.ptq.pytorch_post_training_quantization(net, lambda: ([b] for b in batches), core_config=given)
    told = read_mct_log(log_folder).settings.model_dump(exclude_none=True)
    asked = read_core_config(given)[0].model_dump(exclude_none=True)
    shared = told.keys() & asked.keys()
    assert len(shared) == 10
    assert {key: told[key] for key in shared} == pytest.approx({key: asked[key] for key in shared})


def test_something_else_is_refused() -> None:
    with pytest.raises(DataError, match="a CoreConfig of MCT is expected, not QuantizationConfig"):
        read_core_config(mct.core.QuantizationConfig())
