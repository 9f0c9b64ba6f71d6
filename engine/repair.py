"""Facts as they would be if a cause were repaired: what vanishes then was explained by that cause."""

from collections.abc import Callable

import numpy as np

from quantmedic.engine.case import Case
from quantmedic.engine.derive import assemble, grid_of, main_role, tensor_bins
from quantmedic.engine.facts import (
    CaseFacts,
    ClippingFacts,
    DatasetFacts,
    ErrorFacts,
    ModelFacts,
    QuantizerFacts,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.histogram import Bins
from quantmedic.engine.rule import RuleBase
from quantmedic.engine.simulate import Grid, best_grid, noise, sqnr_db


def recalibrated(case: Case, facts: CaseFacts, base: RuleBase) -> CaseFacts:
    """Facts after the activation ranges were taken from the validation data by min-max.

    Rounding errors are simulated on the stored histograms. Accumulated errors depend on the whole network and become
    unknown; data-set facts about the inputs stay as they are.
    """
    tensors = tuple(_recalibrated(case, i, tensor) for i, tensor in enumerate(facts.tensors))
    repaired = assemble(case, base, tensors)
    return repaired.model_copy(update={"datasets": _unclipped(facts, repaired), "model": _without_outcome(repaired)})


REPAIRS: dict[str, Callable[[Case, CaseFacts, RuleBase], CaseFacts]] = {"recalibrate": recalibrated}


def _recalibrated(case: Case, index: int, tensor: TensorFacts) -> TensorFacts:
    role = main_role(case)
    bins = tensor_bins(case, role, index)
    quantizer = tensor.quantizer
    if bins is None or grid_of(quantizer) is None or quantizer.bits is None:
        return tensor.model_copy(update={"data": tensor.data.model_copy(update={"accumulated": ErrorFacts()})})
    signed_grid = bool(quantizer.symmetric and (quantizer.low or 0.0) < 0)
    grid = Grid.over(float(bins.low[0]), float(bins.high[-1]), quantizer.bits, symmetric=signed_grid)
    if grid.step <= 0:
        return tensor
    known = tensor.data.predicted_best_gain_db is not None
    data = _repaired_data(tensor.data, bins, grid, quantizer.bits, signed_grid, known=known)
    values = tensor.data.values
    reach = max(-grid.low, grid.high)
    negative = max(-(values.min or 0.0), 0.0)
    update = {
        "quantizer": _requantized(quantizer, grid, symmetric=signed_grid),
        "data": data,
        role: data,
        "negative_levels": negative / grid.step,
        "negative_ratio": negative / grid.high if grid.high > 0 else None,
        "range_excess_bits": float(np.log2(reach / values.abs_p99_99)) if values.abs_p99_99 else None,
    }
    return tensor.model_copy(update=update)


def _repaired_data(
    data: TensorDataFacts, bins: Bins, grid: Grid, bits: int, symmetric: bool, *, known: bool
) -> TensorDataFacts:
    mse, power = float(noise(bins, [grid])[0]), bins.power()
    decibels = float(sqnr_db(bins, [grid])[0])
    _, best = best_grid(bins, bits, symmetric=symmetric)
    rounding = ErrorFacts(
        mse=mse,
        nmse=mse / power if power > 0 else None,
        sqnr_db=decibels,
        cosine=1.0 / np.sqrt(1.0 + mse / power) if power > 0 else None,
        rmse_over_scale=float(np.sqrt(mse)) / grid.step,
    )
    return data.model_copy(
        update={
            "rounding": rounding,
            "accumulated": ErrorFacts(),
            "operator": ErrorFacts(),
            "amplification": None,
            "input_sqnr_db": None,
            "rounding_share": None,
            "clipping": ClippingFacts(share=0.0, energy_share=0.0, overshoot=0.0, utilisation=1.0),
            "predicted_best_gain_db": max(best - decibels, 0.0) if known and np.isfinite(best - decibels) else None,
        }
    )


def _requantized(quantizer: QuantizerFacts, grid: Grid, *, symmetric: bool) -> QuantizerFacts:
    ends = {"scale": grid.step, "scale_min": grid.step, "low": grid.low, "high": grid.high}
    if symmetric:
        return quantizer.model_copy(update=ends)
    lowest = -(2 ** ((quantizer.bits or 1) - 1)) if quantizer.signed else 0
    zero_point = lowest - round(grid.low / grid.step)
    return quantizer.model_copy(update={**ends, "zero_point": zero_point})


def _unclipped(facts: CaseFacts, repaired: CaseFacts) -> tuple[DatasetFacts, ...]:
    """The inputs are what they were; only what the new ranges clip has changed."""
    return tuple(
        before.model_copy(
            update={"clipped_share": after.clipped_share, "clipped_share_ratio": after.clipped_share_ratio}
        )
        for before, after in zip(facts.datasets, repaired.datasets, strict=True)
    )


def _without_outcome(repaired: CaseFacts) -> ModelFacts:
    """The model's own facts; what only a new run could tell is unknown."""
    unknown = (
        "degraded_layers",
        "degraded_share",
        "output_sqnr_db",
        "output_agreement",
        "sqnr_slope_db",
        "sqnr_worst_step_db",
        "dead_output",
        "harmed",
    )
    return repaired.model.model_copy(update=dict.fromkeys(unknown))
