"""quantmedic: why did my network lose accuracy when it was quantized, and what do I change?

>>> import quantmedic
>>> diagnosis = quantmedic.diagnose(
...     "float.onnx", "int8.onnx", representative="rep.npz", validation="val.npz"
... )  # doctest: +SKIP
>>> diagnosis.causes[0].cause  # doctest: +SKIP
'preprocessing-mismatch'
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantmedic.api import collect, diagnose, inspect, judge, load_case, load_rulebase, save_case, write_report
    from quantmedic.checks import check
    from quantmedic.comparisons import compare, write_comparison
    from quantmedic.debugging import debugger
    from quantmedic.failed import collect_failed
    from quantmedic.fallbacks import fallback
    from quantmedic.histories import load_history, write_trend
    from quantmedic.imports import import_files
    from quantmedic.sensitivities import load_sensitivity, sensitivity, write_sensitivity
    from quantmedic.static import collect_static
    from quantmedic.weights import collect_weights, compare_weights

try:
    __version__ = _version("quantmedic")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0+unknown"

__all__ = [
    "__version__",
    "check",
    "collect",
    "collect_failed",
    "collect_static",
    "collect_weights",
    "compare",
    "compare_weights",
    "debugger",
    "diagnose",
    "fallback",
    "import_files",
    "inspect",
    "judge",
    "load_case",
    "load_history",
    "load_rulebase",
    "load_sensitivity",
    "save_case",
    "sensitivity",
    "write_comparison",
    "write_report",
    "write_sensitivity",
    "write_trend",
]


#: The module of each name that is not in ``api``.
_HOMES = {
    "check": "checks",
    "collect_failed": "failed",
    "collect_static": "static",
    "collect_weights": "weights",
    "compare": "comparisons",
    "compare_weights": "weights",
    "debugger": "debugging",
    "fallback": "fallbacks",
    "import_files": "imports",
    "load_history": "histories",
    "load_sensitivity": "sensitivities",
    "sensitivity": "sensitivities",
    "write_comparison": "comparisons",
    "write_sensitivity": "sensitivities",
    "write_trend": "histories",
}


def __getattr__(name: str) -> Any:
    """Import the API on first use: ``import quantmedic`` stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'quantmedic' has no attribute {name!r}")
    return getattr(import_module(f"quantmedic.{_HOMES.get(name, 'api')}"), name)
