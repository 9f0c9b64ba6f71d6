"""``python -m quantmedic``."""

from quantmedic.cli.main import main

main()
