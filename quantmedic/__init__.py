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
    from quantmedic.api.cases import load_case, save_case
    from quantmedic.api.checks import check
    from quantmedic.api.collect import collect
    from quantmedic.api.comparisons import compare, write_comparison
    from quantmedic.api.diagnose import diagnose
    from quantmedic.api.failed import collect_failed
    from quantmedic.api.fix import fix
    from quantmedic.api.imports import import_files
    from quantmedic.api.judging import Diagnosis, inspect, judge, write_report
    from quantmedic.api.repairs import calibration_reader, correct_biases, learn_rounding, rewindable
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

#: The public names of each module.
_NAMES = {
    "api.judging": ("Diagnosis", "inspect", "judge", "write_report"),
    "collectors.data.preprocessing": ("Preprocessing",),
    "api.anonymity": ("anonymize",),
    "api.repairs": ("calibration_reader", "correct_biases", "learn_rounding", "rewindable"),
    "api.checks": ("check",),
    "api.collect": ("collect",),
    "api.failed": ("collect_failed",),
    "api.static": ("collect_static",),
    "api.comparisons": ("compare", "write_comparison"),
    "api.diagnose": ("diagnose",),
    "api.fix": ("fix",),
    "api.imports": ("import_files",),
    "api.cases": ("load_case", "save_case"),
    "api.rulebase": ("load_rulebase",),
    "api.search": ("search", "write_search"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
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
        signatures = import_module("quantmedic.api.keywords")
        signature, text = signatures.spelled_out(found), signatures.docstring(found)
        found = import_module("quantmedic.api.keywords").for_python(found)
        setattr(found, "__signature__", signature)  # noqa: B010  # a function has no such attribute for mypy
        found.__doc__ = text
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The API, before any of it is imported, too."""
    return sorted(__all__)
