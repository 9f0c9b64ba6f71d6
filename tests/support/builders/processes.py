"""Processes, looked up in /proc."""

from pathlib import Path


def is_running(pid: int | str) -> bool:
    """A process that nobody has waited for yet runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
