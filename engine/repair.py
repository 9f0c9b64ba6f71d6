"""Facts as they would be if a cause were repaired: what vanishes then was explained by that cause."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from quantmedic.engine.case import Case
from quantmedic.engine.derive import assemble
from quantmedic.engine.facts import (
    CaseFacts,
    ClippingFacts,
    DatasetFacts,
    ErrorFacts,
    ModelFacts,
    QuantizerFacts,
    Role,
    TensorDataFacts,
    TensorFacts,
)
from quantmedic.engine.rule import RuleBase
from quantmedic.engine.simulate import Grid, best_grids, grids_over, noises, sqnrs_db
from quantmedic.engine.tensors import (
    NO_ERROR,
    bin_tables,
    bits_between,
    grid_of,
    is_signed_grid,
    main_role,
    seen_tensors,
)

#: A range that covers all values and nothing else.
_COVERED = ClippingFacts(share=0.0, energy_share=0.0, overshoot=0.0, utilisation=1.0)


def recalibrated(case: Case, facts: CaseFacts, base: RuleBase) -> CaseFacts:
    """Facts after the activation ranges were taken from the validation data by min-max.

    Rounding errors are simulated on the stored histograms. Accumulated errors depend on the whole network and become
    unknown; data-set facts about the inputs stay as they are.
    """
    repaired = assemble(case, base, _recalibrated(case, facts.tensors))
    return repaired.model_copy(update={"datasets": _unclipped(facts, repaired), "model": _without_outcome(repaired)})


REPAIRS: dict[str, Callable[[Case, CaseFacts, RuleBase], CaseFacts]] = {"recalibrate": recalibrated}


def _recalibrated(case: Case, tensors: Sequence[TensorFacts]) -> tuple[TensorFacts, ...]:
    role = main_role(case)
    repaired: dict[int, TensorFacts] = {}
    quantizers = [tensor.quantizer for tensor in tensors]
    seen = [i for i in seen_tensors(case.statistics[role]) if grid_of(quantizers[i]) and quantizers[i].bits is not None]
    for part, bins in bin_tables(case.statistics[role], seen):
        rows = np.arange(len(part))
        bits = np.array([quantizers[i].bits for i in part])
        signed = np.array([is_signed_grid(quantizers[i]) for i in part])
        grids = grids_over(bins.lowest, bins.highest, bits, signed)
        # Where the codes are shared out freely between the signs, the best range is known.
        best = np.array([math.inf if (db := tensors[i].best_sqnr_db) is None else db for i in part])
        if signed.any():
            best[signed] = best_grids(bins, rows[signed], bits[signed], signed[signed])[1]
        noise = noises(bins, rows, grids)
        numbers = np.column_stack([grids.T, noise, bins.powers(), sqnrs_db(bins, rows, grids), best]).tolist()
        for i, (low, high, step, *simulated) in zip(part, numbers, strict=True):
            grid = Grid(low, high, step)
            repaired[i] = _regridded(tensors[i], role, grid, *simulated) if step > 0 else tensors[i]
    return tuple(repaired.get(i) or _unmeasured(tensor) for i, tensor in enumerate(tensors))


def _unmeasured(tensor: TensorFacts) -> TensorFacts:
    """A tensor whose own range stays: what arrives there is unknown."""
    return tensor.model_copy(update={"data": tensor.data.model_copy(update={"accumulated": NO_ERROR})})


def _regridded(
    tensor: TensorFacts, role: Role, grid: Grid, mse: float, power: float, now: float, best: float
) -> TensorFacts:
    """A tensor on a grid over all its values; ``now`` and ``best`` are the SQNR in dB of this grid and of the best."""
    known = tensor.data.predicted_best_gain_db is not None and math.isfinite(best - now)
    data = _repaired_data(tensor.data, grid, mse, power, now, max(best - now, 0.0) if known else None)
    values = tensor.data.values
    reach = max(-grid.low, grid.high)
    negative = max(-(values.min or 0.0), 0.0)
    update = {
        "quantizer": _requantized(tensor.quantizer, grid, symmetric=is_signed_grid(tensor.quantizer)),
        "data": data,
        role: data,
        "negative_levels": negative / grid.step,
        "negative_ratio": negative / grid.high if grid.high > 0 else None,
        "range_excess_bits": bits_between(values.abs_p99_99, reach),
    }
    return tensor.model_copy(update=update)


def _repaired_data(
    data: TensorDataFacts, grid: Grid, mse: float, power: float, now: float, gain: float | None
) -> TensorDataFacts:
    rounding = ErrorFacts(
        mse=mse,
        nmse=mse / power if power > 0 else None,
        sqnr_db=now,
        cosine=1.0 / math.sqrt(1.0 + mse / power) if power > 0 else None,
        rmse_over_scale=math.sqrt(mse) / grid.step,
    )
    return data.model_copy(
        update={
            "rounding": rounding,
            "accumulated": NO_ERROR,
            "operator": NO_ERROR,
            "amplification": None,
            "input_sqnr_db": None,
            "rounding_share": None,
            "clipping": _COVERED,
            "predicted_best_gain_db": gain,
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
