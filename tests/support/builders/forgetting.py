"""Runs that leave one tensor behind: the moves between devices that code makes, each of them left out in its turn."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_TORCH = str(Path(torch.__file__).parent)
_MOVES = (torch.Tensor.to, torch.Tensor.cpu)
#: Place of a move: file, function and line.
Site = tuple[str, str, int]


class Forgetting(TorchFunctionMode):
    """Sees where a package moves tensors from one device to another or makes them on a named one."""

    def __init__(self, package: str, forgotten: Site | None = None) -> None:
        """``package``: part of the paths of its files; ``forgotten``: the place where nothing is moved."""
        super().__init__()
        self.sites: list[Site] = []
        self._package, self._forgotten = package, forgotten

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if not _is_moved(func, args, kwargs, found):
            return found
        site = self._site_of(sys._getframe(1))
        if site is None:
            return found
        if site not in self.sites:
            self.sites.append(site)
        if site != self._forgotten:
            return found
        return args[0] if func in _MOVES else func(*args, **{**kwargs, "device": "cpu"})

    def _site_of(self, frame: FrameType | None) -> Site | None:
        """The line that called torch; None where it stands in no file of the package."""
        while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
            frame = frame.f_back
        if frame is None or self._package not in frame.f_code.co_filename:
            return None
        return Path(frame.f_code.co_filename).name, frame.f_code.co_name, frame.f_lineno


def _is_moved(func: Any, args: Any, kwargs: Any, found: Any) -> bool:
    if func in _MOVES:
        return bool(found.device != args[0].device)
    given = kwargs.get("device")
    return given is not None and torch.device(given).type != "cpu"
