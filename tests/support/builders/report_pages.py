"""Reports for tests in the browser."""

from pathlib import Path
from typing import Any

import quantmedic


def write_pages(case: Any, folder: Path) -> Path:
    """The report of a case, in a folder."""
    quantmedic.write_report(quantmedic.judge(case), folder, formats=("html", "json"), case=case)
    return folder
