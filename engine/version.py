"""The version of the installed package, for reports, cases and ``--version``."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("quantmedic")
except PackageNotFoundError:  # a checkout that was never installed
    VERSION = "0+unknown"
