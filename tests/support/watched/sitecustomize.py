"""What a process must not do is noted: connections (which are refused), foreign programs, changes of files elsewhere.

Python imports this where it starts with this folder in ``PYTHONPATH``, in child processes too. ``QUANTMEDIC_GUARD``
then names the file of the notes, and ``QUANTMEDIC_GUARD_ALLOWED`` the places that may be written to.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator

#: Events of sockets that reach nobody.
_HARMLESS = {"socket.__new__", "socket.gethostname"}
_STARTED = {"os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.startfile", "pty.spawn", "subprocess.Popen"}
#: Arguments of events that are paths of what is changed, each with that of the open folder that it begins in.
_CHANGED = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.chmod": ((0, 2),),
    "os.truncate": ((0, None),),
    "sqlite3.connect": ((0, None),),
}


def watch(log: int, allowed: Collection[str]) -> None:
    """Write a line into an open file for each thing that this process must not do.

    Args:
        log: The file.
        allowed: What may be written to: files, and all that lies in folders.
    """
    places = tuple(os.path.realpath(place).rstrip(os.sep) for place in (*allowed, "/dev/null"))

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith("socket.") and event not in _HARMLESS:
            os.write(log, f"{event} {arguments[1:]!r}\n".encode("utf-8", "replace"))
            raise OSError(f"{event} is refused by the guard of the tests")
        elif event in _STARTED and arguments[0] != sys.executable:
            os.write(log, f"{event} {arguments!r}\n".encode("utf-8", "replace"))
        for path in _changed(event, arguments):
            nameless = path.endswith(" (deleted)")  # opened again by its number
            if not nameless and not any(path == place or path.startswith(place + os.sep) for place in places):
                os.write(log, f"{event} {path}\n".encode("utf-8", "replace"))

    sys.addaudithook(hook)


def _changed(event: str, arguments: tuple[object, ...]) -> Iterator[str]:
    """Where the things really lie that an event changes."""
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not isinstance(path, int):
            yield os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]  # a path, by the interpreter
    for index, folder in _CHANGED.get(event, ()):
        path = arguments[index]
        only_read = event == "sqlite3.connect" and re.match(r"file:.*[?&]mode=ro\b", str(path))
        if isinstance(path, str | bytes | os.PathLike) and path != ":memory:" and not only_read:
            descriptor = -1 if folder is None else arguments[folder]
            base = "" if descriptor == -1 else os.readlink(f"/proc/self/fd/{descriptor}")
            above, name = os.path.split(os.path.join(base, os.fsdecode(path)))
            yield os.path.join(os.path.realpath(above), name)


if notes := os.environ.get("QUANTMEDIC_GUARD"):
    watch(os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.environ["QUANTMEDIC_GUARD_ALLOWED"].split(":"))
