"""``python -m quantmedic``."""

from quantmedic.cli import main

main()
