"""Where the program begins: ``quantmedic`` and ``python -m quantmedic``."""

import os
import signal
import sys
from typing import NoReturn

# Python puts the working directory first: what lies there must not take the place of the packages that we import.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]


def main() -> NoReturn:
    """Run a command; Ctrl-C ends the process at once while its modules are imported, where nothing is to be kept."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from quantmedic.cli.main import main as run  # most of the start-up time

    run()


def _leave(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
