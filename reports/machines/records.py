"""Records as JSON in ASCII, safe inside markup and terminals."""

import json

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from quantmedic.engine.contract.calibrations import CalibrationsRecord
from quantmedic.engine.contract.fallback import FallbackRecord
from quantmedic.engine.diagnosis.sensitivity import SensitivityRecord
from quantmedic.engine.formulas.debugger import DebuggerRecord
from quantmedic.engine.json_text import with_whole_text
from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.text import inert_json


def record_json(record: BaseModel) -> str:
    """A record; a number that is not finite becomes null, half of a character becomes text."""
    try:
        text = record.model_dump_json(indent=1, fallback=str)
    except PydanticSerializationError:  # a name of a file that is no UTF-8
        text = to_json(with_whole_text(record.model_dump()), indent=1, inf_nan_mode="null", fallback=str).decode()
    return inert_json(text)


def comparison_json(record: ComparisonReport) -> str:
    """``compare.json``: the record itself."""
    return record_json(record)


def sensitivity_json(record: SensitivityRecord) -> str:
    """``sensitivity.json``: the record itself."""
    return record_json(record)


def fallback_json(record: FallbackRecord) -> str:
    """The record, its verdict and the nodes to exclude."""
    derived = {"verdict": record.verdict, "nodes_to_exclude": record.nodes_to_exclude}
    return inert_json(json.dumps(json.loads(record_json(record)) | derived, indent=1))


def denylist_json(record: DebuggerRecord) -> str:
    """``denylist.json``: what the debugger suspects, under the names of the options of LiteRT's debugger."""
    lists = {"denylisted_nodes": record.denylisted_nodes, "denylisted_ops": record.denylisted_ops}
    return inert_json(json.dumps(lists, indent=1))


def calibrations_json(record: CalibrationsRecord) -> str:
    """``calibrations.json``: the record itself."""
    return record_json(record)
