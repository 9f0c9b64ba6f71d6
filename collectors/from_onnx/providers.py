"""On which device onnxruntime computes: its execution providers, chosen once for all sessions of a run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import onnxruntime as ort

from quantmedic.engine.errors import ModelError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
#: Has a session remember which provider got which node.
RECORDED = "session.record_ep_graph_assignment_info"
#: From this severity on onnxruntime prints: it warns at every session that its CUDA is no plugin.
_ERROR = 3
#: Types of operators that a notice lists.
TYPES_TOLD = 8

Provider = str | tuple[str, dict[str, str]]
#: Providers of the sessions that are made now, the last of several nested choices first.
_chosen: list[list[Provider]] = [[CPU]]


def chosen_providers() -> Sequence[Provider]:
    """Providers of the sessions that are made now: the processor's, unless another device was chosen."""
    return _chosen[-1]


def providers_of(device: str) -> list[Provider]:
    """What ``cpu``, ``cuda`` or ``cuda:1`` is to onnxruntime; what a device has no kernel for, the processor computes.

    Raises:
        ModelError: onnxruntime has no provider for the device.
    """
    kind, _, number = device.partition(":")
    if device == "cpu":
        return [CPU]
    if kind != "cuda" or (number and not number.isdecimal()):
        raise ModelError(
            "ONNX models are not run on this device", where=f"--device {device}", help="cpu, cuda, or cuda:1"
        )
    available = ort.get_available_providers()
    if CUDA not in available:
        raise ModelError(
            "onnxruntime is installed without CUDA",
            where=[f"--device {device}", f"onnxruntime {ort.__version__} has {', '.join(available)}"],
            help="pip uninstall onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]', or leave --device out",
        )
    if hasattr(ort, "preload_dlls"):  # finds the libraries that pip installed beside onnxruntime, or torch brought
        with redirect_stdout(StringIO()):  # what it misses, the session that cannot start tells
            ort.preload_dlls()
    ort.set_default_logger_severity(_ERROR)
    return [(CUDA, {"device_id": number or "0"}), CPU]


@contextmanager
def sessions_on(providers: Sequence[Provider]) -> Iterator[None]:
    """Context in which sessions are made with these providers, by whichever thread."""
    _chosen.append(list(providers))
    try:
        yield
    finally:
        _chosen.pop()


def require_providers(session: ort.InferenceSession) -> None:
    """Refuse a session that onnxruntime made without the chosen device, as it does where libraries are missing.

    Raises:
        ModelError: It runs on the processor alone.
    """
    wanted = [(each, {}) if isinstance(each, str) else each for each in chosen_providers()]
    found = session.get_providers()
    if missing := [f"{name} {settings.get('device_id', '')}".strip() for name, settings in wanted if name not in found]:
        raise ModelError(
            "onnxruntime could not start the device",
            where=f"{', '.join(missing)} asked for, {', '.join(found)} started",
            help="is there a device of this number (nvidia-smi lists them)? Are the driver, CUDA and cuDNN of the "
            "versions that this onnxruntime-gpu names? pip install 'onnxruntime-gpu[cuda,cudnn]' brings the libraries",
        )


def describe_assignment(name: str, session: ort.InferenceSession) -> str:
    """Which provider got how many nodes of a model, as far as the session tells; see ``RECORDED``."""
    if not hasattr(session, "get_provider_graph_assignment_info"):  # before onnxruntime 1.24
        return f"{name} is run by {', '.join(session.get_providers())}"
    parts = session.get_provider_graph_assignment_info()
    nodes = Counter((part.ep_name, node.op_type) for part in parts for node in part.get_nodes())
    total = sum(nodes.values())
    texts = []
    for provider in dict.fromkeys(part.ep_name for part in parts):
        types = sorted(kind for owner, kind in nodes if owner == provider)
        own = sum(count for (owner, _), count in nodes.items() if owner == provider)
        told = f" ({', '.join(types[:TYPES_TOLD])}{' …' if len(types) > TYPES_TOLD else ''})" if own < total else ""
        texts.append(f"{own} of {total} nodes are run by {provider}{told}")
    return f"{name}: {', '.join(texts)}"
