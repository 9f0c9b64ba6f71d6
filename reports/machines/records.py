"""Records as JSON in ASCII, safe inside markup and terminals."""

import json

from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.engine.contract.check import Trend
from quantmedic.engine.contract.fallback import FallbackRecord
from quantmedic.engine.diagnosis.sensitivity import SensitivityRecord
from quantmedic.engine.formulas.debugger import DebuggerRecord
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.text import inert_json


def comparison_json(record: ComparisonReport) -> str:
    """``compare.json``: the record itself."""
    return inert_json(record.model_dump_json(indent=1, fallback=str))


def trend_json(trend: Trend) -> str:
    """``trend.json``: the record itself; a number that is not finite becomes null."""
    return inert_json(trend.model_dump_json(indent=1, fallback=str))


def sensitivity_json(record: SensitivityRecord) -> str:
    """``sensitivity.json``: the record itself."""
    return inert_json(record.model_dump_json(indent=1))


def fallback_json(record: FallbackRecord) -> str:
    """The record, its verdict and the nodes to exclude."""
    derived = {"verdict": record.verdict, "nodes_to_exclude": record.nodes_to_exclude}
    return inert_json(json.dumps(record.model_dump(mode="json") | derived, indent=1))


def denylist_json(record: DebuggerRecord) -> str:
    """``denylist.json``: what the debugger suspects, under the names of the options of LiteRT's debugger."""
    lists = {"denylisted_nodes": record.denylisted_nodes, "denylisted_ops": record.denylisted_ops}
    return inert_json(json.dumps(lists, indent=1))


def calibrations_json(record: CalibrationsRecord) -> str:
    """``calibrations.json``: the record itself."""
    return inert_json(record.model_dump_json(indent=1))
