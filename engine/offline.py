"""Libraries that open connections, or measure their users: kept from it here, and nowhere else.

Some ask only once, while they are imported; so whatever imports or calls one of them does it in ``offline()``.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

#: Of Hugging Face, which asks its server for kernels and for files that are not there.
_HUB, _SWITCHES = "huggingface_hub", ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
#: What OpenVINO and NNCF import to send what they measure; without it they send nothing.
_SENDER = "openvino_telemetry"
#: First lines of a Python process of our own, which starts with ``offline_environment()``.
IN_CHILD = f"import sys\nsys.modules[{_SENDER!r}] = None\n"


def switch_off_onnxruntime() -> None:
    """Before the import of onnxruntime, which reads this; whoever has set it has decided.

    From 1.32 on, that import writes an identifier of the device and a database into the user's cache.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def offline_environment() -> dict[str, str]:
    """The environment of a process of our own."""
    return {**os.environ, **dict.fromkeys(_SWITCHES, "1")}


@contextmanager
def offline() -> Iterator[None]:
    """Context in which no library asks a server or measures its user; what the user has set holds again afterwards."""
    hub = import_module(f"{_HUB}.constants") if find_spec(_HUB) is not None else None
    before = {} if hub is None else {name: getattr(hub, name, False) for name in _SWITCHES}
    is_ours = _SENDER not in sys.modules
    for name in before:
        setattr(hub, name, True)
    if is_ours:
        sys.modules[_SENDER] = None  # type: ignore[assignment]  # Python says then that there is no such module
    try:
        yield
    finally:
        if is_ours:
            del sys.modules[_SENDER]
        for name, value in before.items():
            setattr(hub, name, value)
