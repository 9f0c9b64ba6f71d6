"""Features of the machine that decide how integer kernels compute."""

import os
import platform
from pathlib import Path

#: Environment variable with which models are measured as on processors with VNNI, on ARM or on an NPU.
EXACT_KERNELS = "QUANTMEDIC_EXACT_KERNELS"


def cpu_flags() -> frozenset[str] | None:
    """Instruction set flags of the CPU, None where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = (line.partition(":")[2] for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").split())


def has_vnni() -> bool | None:
    """The CPU multiplies u8 by s8 without saturating; None where unknown."""
    if platform.machine().lower() in ("arm64", "aarch64"):
        return None
    flags = cpu_flags()
    return None if flags is None else bool(flags & {"avx512_vnni", "avx_vnni"})


def wants_exact_kernels() -> bool:
    """Whether integer kernels are to compute as on targets where they cannot saturate, whatever this CPU does."""
    return bool(os.environ.get(EXACT_KERNELS))


def available_threads() -> int:
    """Processors that this process may use, which a container or a batch system may have limited."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
