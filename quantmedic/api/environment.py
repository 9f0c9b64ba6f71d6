"""What ``quantmedic show --environment`` shows: versions, optional packages, features of the machine."""

import os
import platform
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from quantmedic.collectors.extensions import other_packages
from quantmedic.collectors.measure.host import EXACT_KERNELS, has_vnni, wants_exact_kernels
from quantmedic.engine.errors import QuantmedicError, failure_in_words

_CORE = ("numpy", "numba", "onnx", "onnxruntime", "pydantic", "jinja2", "markdown", "click", "cloup", "rich")
_EXTRAS = {
    "images": "pillow",
    "litert": "ai-edge-litert",
    "openvino": "openvino",
    "png": "resvg-py",
    "torch": "torch",
    "weights": "safetensors",
    "cluster": "distributed",
    "mcp": "mcp",
    "mct": "tensorboard",
}


def environment_lines() -> Iterator[str]:
    """One line per fact, problems marked with ``!``."""
    yield f"quantmedic {_version('quantmedic')}   Python {platform.python_version()}   {_system()}"
    for name in _CORE:
        found = _version(name)
        yield f"{'  ' if found else '! '}{name:14} {found or 'missing: pip install quantmedic'}"
    for extra, name in _EXTRAS.items():
        yield f"  {name:14} {_version(name) or f'''not installed: pip install 'quantmedic[{extra}]' '''.strip()}"
    for package in other_packages():
        yield f"  {'extension':14} {package}"
    yield f"  {'cores':14} {os.cpu_count()}"
    yield f"  {'VNNI':14} {_vnni()}"
    yield f"  {'kernels':14} {_kernels()}"


def _system() -> str:
    """As ``platform.platform`` has it, which starts a program to learn less."""
    named = f"{platform.system()}-{platform.release()}-{platform.machine()}"
    library = "".join(platform.libc_ver())
    return f"{named}-with-{library}" if library else named


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _vnni() -> str:
    known = has_vnni()
    if known is None:
        return "unknown on this machine"
    if known:
        return "yes"
    if wants_exact_kernels():
        return f"no: {EXACT_KERNELS} keeps u8 x s8 products from saturating"
    return f"no: u8 x s8 products may saturate (see reduce-range); {EXACT_KERNELS}=1 measures without that"


def _kernels() -> str:
    try:
        import_module("quantmedic.collectors.statistics.accumulate")
    except QuantmedicError as error:
        return failure_in_words(error)
    return "compiled by numba"
