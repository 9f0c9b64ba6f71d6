"""Loss budgets for diagnoses that have none."""

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.loss_budget import BudgetLine, BudgetOutput, LossBudgetReport


def line(place: str, share: float, **fields: object) -> BudgetLine:
    """Weights of one layer."""
    common = {"source": "weight", "places": (place,), "layers": (place,), "op_type": "Conv", "shares": (share,)}
    return BudgetLine.model_validate({**common, "words": f"weights of {place}", "share": share, **fields})


def with_budget(diagnosis: Diagnosis, lines: tuple[BudgetLine, ...], **fields: object) -> Diagnosis:
    """The diagnosis with these lines as its budget; what they leave is the rest."""
    unsimulated = float(str(fields.pop("unsimulated", 0.0)))
    rest = 1.0 - unsimulated - sum(one.share for one in lines)
    budget = LossBudgetReport.model_validate(
        {
            "dataset": "validation", "samples": 48, "runs": 17, "by_source": {"weight": 1.0}, "metric_lost": 0.1,
            "outputs": (BudgetOutput(name="logits", sqnr_db=10.0, unsimulated=unsimulated),),
            "lines": lines, "rest": rest, "complete": True, **fields,
        }
    )  # fmt: skip
    return diagnosis.model_copy(update={"loss_budget": budget})
