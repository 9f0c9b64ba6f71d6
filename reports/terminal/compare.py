"""Two diagnoses side by side for the terminal, the answer first."""

from quantmedic.engine.versus.side_by_side import ComparisonReport
from quantmedic.reports.sections.comparison import compare_summary
from quantmedic.reports.terminal.block_lines import section_lines
from quantmedic.reports.terminal.lines import Verbosity, terminal_text, wrap_line

COLOURS = {"healed": "1;32", "better": "1;32", "broken": "1;31", "worse": "1;31", "mixed": "1;33", "unchanged": "1"}


def render_comparison(
    record: ComparisonReport, *, verbosity: Verbosity = "normal", color: bool = False, ascii_only: bool = False
) -> str:
    """Text for the terminal, the answer first.

    Args:
        record: What to show.
        verbosity: ``quiet`` prints the answer alone, ``verbose`` every layer and every subject.
        color: Use the colours of the terminal.
        ascii_only: Write no character beyond ASCII.
    """
    document = compare_summary(record, verbose=verbosity == "verbose")
    head = document.word.upper()
    lines = wrap_line(f"{head}  {document.facts[0]}")
    if color:
        lines[0] = lines[0].replace(head, f"\x1b[{COLOURS.get(record.word, '1;33')}m{head}\x1b[0m", 1)
    if verbosity != "quiet":
        lines += [line for notice in document.notices for line in wrap_line(f"notice: {notice}", indent=2)]
        lines += [line for section in document.sections for line in section_lines(section)]
    return terminal_text(lines, ascii_only=ascii_only)
