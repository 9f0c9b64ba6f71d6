"""Loss budgets for diagnoses that have none."""

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.contract.budget_report import BudgetLine, BudgetOutput, LossBudgetReport, LossPart, TaskLoss
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.loss_path import with_loss_path


def line(place: str, share: float, **fields: object) -> BudgetLine:
    """Weights of one layer."""
    common = {
        "source": "weight",
        "places": (place,),
        "layers": (place,),
        "op_type": "Conv",
        "shares": (share,),
        "last": share,
    }
    return BudgetLine.model_validate({**common, "words": f"weights of {place}", "share": share, **fields})


def loss(lost: float, reach: float = 0.02, *, judged: bool = True) -> LossPart:
    """A part of a loss."""
    return LossPart(lost=lost, low=lost - reach, high=lost + reach, judged=judged)


def task_loss(whole: LossPart, **parts: LossPart) -> TaskLoss:
    """What top-1 loses, and what of it no line takes."""
    none = {"interaction": loss(0.0), "rest": loss(0.0), "unassigned": loss(0.0)}
    return TaskLoss.model_validate({"measure": "metric", "whole": whole, **none, **parts})


def with_budget(diagnosis: Diagnosis, lines: tuple[BudgetLine, ...], **fields: object) -> Diagnosis:
    """The diagnosis with these lines as its budget; what they leave is the rest."""
    unsimulated = float(str(fields.pop("unsimulated", 0.0)))
    rest = 1.0 - unsimulated - sum(one.share for one in lines)
    budget = LossBudgetReport.model_validate(
        {
            "dataset": "validation", "samples": 48, "runs": 17, "by_source": {"weight": 1.0 - unsimulated},
            "outputs": (BudgetOutput(name="logits", sqnr_db=10.0, unsimulated=unsimulated),),
            "lines": lines, "rest": rest, "complete": True, **fields,
        }
    )  # fmt: skip
    return with_loss_path(diagnosis.model_copy(update={"loss_budget": budget}), load_rulebase())
