"""The command ``mcp``: a server by which a coding agent diagnoses, checks and fixes."""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from quantmedic.cli.groups import Command, option
from quantmedic.cli.streams import bare_stream, print_format, print_line
from quantmedic.engine.errors import QuantmedicError

SKILL = Path(__file__).parents[1] / "mcp" / "SKILL.md"


@click.command(cls=Command)
@option("--skill", is_flag=True, title="Output", help="Print what an agent has to know to use quantmedic, and exit.")
def mcp(skill: bool) -> None:
    """Serve diagnose, check, fix, search and explain to a coding agent, over standard input and output.

    The agent starts it. It reads and writes in the current folder alone, and runs no function of yours.

    \b
    Examples:
      quantmedic mcp
      quantmedic mcp --skill > SKILL.md
    """
    if skill:
        print_format(SKILL.read_text(encoding="utf-8"))
        return
    try:
        import anyio  # an optional package

        from quantmedic.mcp.server import serve  # needs it
    except ImportError as error:
        raise QuantmedicError(
            "the server needs the package mcp, from 2.3 on, which is not installed",
            where=str(error),
            help="pip install 'quantmedic[mcp]'",
        ) from error
    if sys.stdin.isatty():
        print_line("a coding agent starts this command and talks to it; quantmedic explain mcp says how", err=True)
    with redirect_stdout(bare_stream(sys.stdout)):
        anyio.run(serve)
