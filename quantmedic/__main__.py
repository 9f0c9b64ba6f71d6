"""``python -m quantmedic``."""

import os
import sys

# Python puts the working directory first: what lies there must not take the place of the packages that we import.
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from quantmedic.cli.main import main

main()
