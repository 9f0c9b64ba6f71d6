"""Refuses every socket of a process and of all that it starts, where this folder is the first of PYTHONPATH.

Python imports this file when it starts. Who asks is written down, for libraries swallow errors of connections.
"""

import os
import sys

_LOG = os.environ["QUANTMEDIC_GUARD_LOG"]
_OPENING = ("socket.__new__", "socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if event in _OPENING:
        with open(_LOG, "a", encoding="utf-8") as log:
            log.write(f"{event} {arguments!r} {sys.argv[:3]}\n")
        raise OSError(f"{event} is refused by the guard of the tests")


sys.addaudithook(_refuse)
