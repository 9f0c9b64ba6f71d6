"""Features of the machine that decide how integer kernels compute."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quantmedic.engine.reading_limits import THREADS

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


def installed_version(package: str) -> str | None:
    """Version of an installed package; None without it, and for a build under another name."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def available_threads() -> int:
    """Processors that this process may use, which a container or a batch system may have limited."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def threads_to_use(wanted: int | None) -> int:
    """As many threads as are wanted, all processors where nothing is.

    Raises:
        LimitError: They are more than any machine has: each takes memory before it does anything.
    """
    if not wanted:
        return available_threads()
    THREADS.check(wanted, f"--threads {wanted}")
    return wanted


def resident_memory() -> int | None:
    """Bytes of this process that are resident; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take, which a container or a batch system may have limited; None if unknown.

    Args:
        root: Where ``proc`` and ``sys`` stand.
    """
    known = [size for size in (_available_memory(root), *_rooms_of_groups(root)) if size is not None]
    return max(min(known), 0) if known else None


def _available_memory(root: Path) -> int | None:
    """What Linux calls available; elsewhere half of what is built in."""
    with suppress(OSError, ValueError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    if sys.platform == "win32":
        return None
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _rooms_of_groups(root: Path) -> Iterator[int | None]:
    """What the control groups of this process (cgroup v2, v1) and those around them leave."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "memory" not in kinds.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if kinds else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else ("memory.max", "memory.current")
        group = base / path.lstrip("/")
        # In a container the path may be that of the host: then only the group at the top is seen.
        for folder in (group, *group.parents):
            yield _room_of(folder, *names)
            if folder == base:
                break


def _room_of(folder: Path, limit: str, usage: str) -> int | None:
    """What one group leaves; files that were read and may be forgotten do not count as used."""
    try:
        most, used = (folder / limit).read_text().strip(), int((folder / usage).read_text())
    except (OSError, ValueError):
        return None
    if not most.isdecimal():  # "max"
        return None
    forgettable = 0
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        forgettable = next((int(line[1]) for line in lines if line[0] in ("inactive_file", "total_inactive_file")), 0)
    return int(most) - used + forgettable
