"""The commands ``doctor`` and ``completion``: the machine, and the user's shell."""

import click
from click.shell_completion import ShellComplete, get_completion_class

from quantmedic.api.environment import environment_lines
from quantmedic.cli.groups import Command
from quantmedic.cli.options import CONTEXT
from quantmedic.cli.streams import print_format, print_line


@click.command(cls=Command, context_settings=CONTEXT)
def doctor() -> None:
    """Show versions, optional packages and the CPU features that matter for integer kernels."""
    for line in environment_lines():
        print_line(line)


@click.command(cls=Command, context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the completion script for your shell.

    \b
    Examples:
      quantmedic completion bash > ~/.local/share/bash-completion/completions/quantmedic
    """
    completions = get_completion_class(shell)
    assert completions is not None
    command = context.find_root().command
    own = completions(command, {}, "quantmedic", "_QUANTMEDIC_COMPLETE")
    print_format(ShellComplete.source(own) + "\n")  # that of bash would start one, to ask for its version
