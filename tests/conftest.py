"""The two tiers of the tests.

``pytest`` alone is the inner loop. It leaves out what is marked ``thorough``: what takes long, needs torch or a
browser, or quantizes real networks. A test file named on the command line runs as a whole. ``pytest -m ""``
runs everything. The marker expression in ``addopts`` (``pyproject.toml``) decides; it also chooses the profile of the
property tests.
"""

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before numpy is loaded, and for the commands that tests run: matrices are small here, and threads of several test
# processes that wait for one another multiply the time.
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Tests that are not about the integer kernels of one processor give the same on every host.
os.environ["QUANTMEDIC_EXACT_KERNELS"] = "1"

# Tests that are not about proof do not wait for it.
os.environ["QUANTMEDIC_NO_PROVE"] = "1"

import quantmedic  # noqa: E402
from quantmedic.collectors.measure.host import has_vnni  # noqa: E402
from quantmedic.demo import patient  # noqa: E402

INNER_LOOP = "not thorough"

pytest.register_assert_rewrite("builders")

# What they hold against each other is equal only where sums of u8 x s8 products do not saturate, as with VNNI: an
# x86 processor without it computes something else, and R001 is about that.
NEED_EXACT_SUMS = {
    "test_16_bit_input_beside_coded_weights_is_said_to_be_rounded_where_the_runtime_does",
    "test_a_row_is_the_operator_alone_on_deployed_inputs",
    "test_an_integer_operator_comes_within_a_step",
    "test_bias_that_was_cut_off_is_repaired_by_its_own_remedy_alone",
    "test_bias_that_would_not_fit_gets_a_wider_step_for_its_weights",
    "test_both_are_learned_on_copies_that_keep_their_form",
    "test_classes_margins_and_ties_equal_numpy",
    "test_deployed_values_of_a_quarter_of_the_samples_are_counted_in_any_order",
    "test_device_that_agrees_is_healthy",
    "test_dropped_taps_are_told_and_left_out",
    "test_errors_of_activations_equal_numpy",
    "test_exclude_list_that_matches_nothing",
    "test_float_weights_between_codes_stay_float",
    "test_mean_errors_vanish_on_the_fitted_samples",
    "test_models_of_all_producers_can_be_edited",
    "test_operands_of_a_concat_with_very_different_ranges",
    "test_operator_error_is_that_of_the_operator_on_float_inputs",
    "test_progress_counts_samples",
    "test_reading_codes_leaves_kernels_and_outputs_alone",
    "test_relu_left_to_a_quantizer_comes_back_with_its_removal",
    "test_simulation_is_admitted_where_most_taps_are_at_fault",
    "test_sixteen_bit_codes_are_written_for_the_opset",
    "test_statically_quantized_models",
    "test_step_error_is_that_of_the_float_operator_on_deployed_inputs",
    "test_swish_needs_the_layer_in_front_in_float",
    "test_taps_at_fault_are_dropped",
    "test_they_come_on_top_of_other_changes",
    "test_weights_of_dynamic_products",
}

# How long an example takes depends on what else the machine does: no test judges by that.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if is_inner_loop(config) and named and all(name.partition("::")[0].endswith(".py") for name in config.args):
        config.option.markexpr = ""
    settings.load_profile("quick" if is_inner_loop(config) else "thorough")


def pytest_report_header(config: pytest.Config) -> str | None:
    return 'inner loop; everything: pytest -m ""' if is_inner_loop(config) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is thorough as a whole is not imported in the inner loop: torch alone takes seconds."""
    return True if is_inner_loop(config) and is_thorough(collection_path) else None


def pytest_collection_finish() -> None:
    """What was collected lives until the end: the garbage collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()


def is_inner_loop(config: pytest.Config) -> bool:
    return str(config.option.markexpr) == INNER_LOOP


def is_thorough(path: Path) -> bool:
    """Whether the marker stands for a whole file."""
    marker = r"^pytestmark = \[?\s*pytest\.mark\.thorough"
    return path.suffix == ".py" and re.search(marker, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.fixture(scope="session")
def patient_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Case file of the embedded patient; no test writes to it."""
    return write_demo_case(tmp_path_factory.mktemp("patient") / "demo.case", healthy=False)


@pytest.fixture(scope="session")
def healthy_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Case file of the patient's healthy twin; no test writes to it."""
    return write_demo_case(tmp_path_factory.mktemp("healthy") / "demo.case", healthy=True)


def write_demo_case(path: Path, *, healthy: bool) -> Path:
    models, options = patient(healthy=healthy)
    quantmedic.save_case(quantmedic.collect(*models, **options), path)
    return path


@pytest.fixture(scope="session", autouse=True)
def _inner_loop_without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if is_inner_loop(request.config):
        assert "torch" not in sys.modules, "a test of the inner loop imported torch: mark it thorough"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if has_vnni() is not False:
        return
    skipped = pytest.mark.skip(reason="sums of this processor's integer kernels saturate: it has no VNNI")
    for item in items:
        if getattr(item, "originalname", item.name) in NEED_EXACT_SUMS:
            item.add_marker(skipped)
