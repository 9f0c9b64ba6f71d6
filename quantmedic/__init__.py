"""quantmedic: why did my network lose accuracy when it was quantized, and what do I change?

>>> import quantmedic
>>> diagnosis = quantmedic.diagnose(
...     "float.onnx", "int8.onnx", representative="rep.npz", validation="val.npz"
... )  # doctest: +SKIP
>>> diagnosis.causes[0].name  # doctest: +SKIP
'preprocessing-scale-mismatch'
"""

from importlib import import_module
from typing import TYPE_CHECKING

from quantmedic.engine.offline import switch_off_onnxruntime

if TYPE_CHECKING:
    from quantmedic.api.anonymity import anonymize
    from quantmedic.api.answer import Diagnosis
    from quantmedic.api.cases import load_case, save_case
    from quantmedic.api.checks import check
    from quantmedic.api.collect import collect
    from quantmedic.api.comparisons import compare, write_comparison
    from quantmedic.api.diagnose import diagnose
    from quantmedic.api.failed import collect_failed
    from quantmedic.api.fix import fix
    from quantmedic.api.imports import import_files
    from quantmedic.api.inspection import inspect
    from quantmedic.api.judging import judge
    from quantmedic.api.readers import calibration_reader
    from quantmedic.api.repairs import correct_biases, learn_rounding, rewindable
    from quantmedic.api.report import write_report
    from quantmedic.api.rulebase import load_rulebase
    from quantmedic.api.search import search, write_search
    from quantmedic.api.static import collect_static
    from quantmedic.collectors.data.preprocessing import Preprocessing
    from quantmedic.engine.version import VERSION as __version__

switch_off_onnxruntime()

__all__ = [
    "Diagnosis",
    "Preprocessing",
    "__version__",
    "anonymize",
    "calibration_reader",
    "check",
    "collect",
    "collect_failed",
    "collect_static",
    "compare",
    "correct_biases",
    "diagnose",
    "fix",
    "import_files",
    "inspect",
    "judge",
    "learn_rounding",
    "load_case",
    "load_rulebase",
    "rewindable",
    "save_case",
    "search",
    "write_comparison",
    "write_report",
    "write_search",
]

#: The module of each public name.
_HOMES = {
    "Diagnosis": "api.answer",
    "Preprocessing": "collectors.data.preprocessing",
    "anonymize": "api.anonymity",
    "calibration_reader": "api.readers",
    "check": "api.checks",
    "collect": "api.collect",
    "collect_failed": "api.failed",
    "collect_static": "api.static",
    "compare": "api.comparisons",
    "correct_biases": "api.repairs",
    "diagnose": "api.diagnose",
    "fix": "api.fix",
    "import_files": "api.imports",
    "inspect": "api.inspection",
    "judge": "api.judging",
    "learn_rounding": "api.repairs",
    "load_case": "api.cases",
    "load_rulebase": "api.rulebase",
    "rewindable": "api.repairs",
    "save_case": "api.cases",
    "search": "api.search",
    "write_comparison": "api.comparisons",
    "write_report": "api.report",
    "write_search": "api.search",
}
#: What to call instead of functions of earlier versions.
_SUCCESSORS = {
    **{kind: f"quantmedic.search({kind!r}, …)" for kind in ("sensitivity", "fallback", "calibrations", "debugger")},
    "collect_weights": "quantmedic.collect(…, weights_only=True)",
    "compare_weights": "quantmedic.diagnose(…, weights_only=True)",
    **dict.fromkeys(("equalize", "smooth"), "a toolchain that does it: AIMET, MCT, NNCF or Neural Compressor"),
    "what_if": "quantmedic.collect for each variant, and quantmedic.compare",
    "write_sensitivity": "quantmedic.write_search",
}


def __getattr__(name: str) -> object:
    """Import the API on first use: ``import quantmedic`` stays cheap, and leaves Ctrl-C no time for a traceback."""
    if name == "__version__":
        return import_module("quantmedic.engine.version").VERSION
    if name not in _HOMES:
        instead = f": use {_SUCCESSORS[name]}" if name in _SUCCESSORS else ""
        raise AttributeError(f"module 'quantmedic' has no attribute {name!r}{instead}")
    found = getattr(import_module(f"quantmedic.{_HOMES[name]}"), name)
    if not isinstance(found, type):
        signatures = import_module("quantmedic.api.signatures")
        signature, text = signatures.spelled_out(found), signatures.docstring(found)
        found = import_module("quantmedic.api.parameters").for_python(found)
        setattr(found, "__signature__", signature)  # noqa: B010  # a function has no such attribute for mypy
        found.__doc__ = text
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The API, before any of it is imported, too."""
    return sorted(__all__)
