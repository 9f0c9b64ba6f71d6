"""The pages for the site, the README and the manual's general pages: the commands on them exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from quantmedic.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "pages").rglob("*.md"))]
MANUAL = sorted((ROOT / "manuals" / "general").glob("*.md"))
BLOCK = re.compile(r"^```([\w ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TYPED = ("", "sh", "sh run", "console")


def commands_on(page: Path) -> Iterator[list[str]]:
    """Words of each command of quantmedic, without its own name."""
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", "").splitlines() if kind in TYPED else ():
            if line.removeprefix("$ ").startswith("quantmedic "):
                yield shlex.split(line.removeprefix("$ "), comments=True)[1:]


def command_of(words: list[str]) -> tuple[click.Command | None, list[str]]:
    """The command that the first words name, and the words behind them."""
    found: click.Command | None = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        found, words = found.get_command(click.Context(found), words[0]), words[1:]
    return found, words


def test_commands_and_options_exist() -> None:
    told = [words for page in (*PAGES, *MANUAL) for words in commands_on(page)]
    assert len(told) > 30
    for words in told:
        command, given = command_of(words)
        assert command is not None, words
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        unknown = [word for word in given if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
        assert not unknown, words


def test_lines_are_short() -> None:
    """But for tables and for what is to be typed."""
    lines = [line for page in PAGES for line in BLOCK.sub("", page.read_text(encoding="utf-8")).splitlines()]
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]
