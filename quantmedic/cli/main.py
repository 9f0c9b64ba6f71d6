"""The command line: its commands, and one readable message for every error.

Exit codes: 0 done, 2 could not do its job, 130 Ctrl-C, 143 SIGTERM; `check`, `fix`, `search` and `explain` have more. A
command leaves with a code of its own by ``click.exceptions.Exit``: whoever else ends the process, such as a user's
function, decides nothing.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class, shell_complete

from quantmedic.cli.streams import guarded_streams, open_closed_descriptors, print_format, print_line
from quantmedic.cli.successors import refuse_command
from quantmedic.cli.terminal import (
    heed_signals,
    interrupted_status,
    leave_at_once_if_stuck,
    print_error,
    was_interrupted,
)
from quantmedic.collectors.data.messages import error_text
from quantmedic.engine.errors import QuantmedicError


class LazyCommand(NamedTuple):
    """Where a command is defined, as ``module:function``, and its line in the help of the group."""

    place: str
    help: str


COMMANDS = {
    "demo": LazyCommand("quantmedic.cli.measuring:demo", "Diagnose an embedded network with a calibration mistake."),
    "diagnose": LazyCommand("quantmedic.cli.diagnose:diagnose", "Measure two models, judge causes, write a report."),
    "fix": LazyCommand("quantmedic.cli.fix:fix", "Carry out the prescription; write the model if it is better."),
    "check": LazyCommand("quantmedic.cli.check:check", "Apply limits or a policy: fail where the model got worse."),
    "compare": LazyCommand("quantmedic.cli.compare:compare", "Put two cases side by side: what healed, what broke."),
    "collect": LazyCommand("quantmedic.cli.collect:collect", "Measure only: write a case file that `diagnose` judges."),
    "search": LazyCommand("quantmedic.cli.search:search", "Search layers to keep in float, or the best calibration."),
    "import": LazyCommand("quantmedic.cli.import_files:import_", "Read files of a toolchain: settings, logs, tables."),
    "explain": LazyCommand(
        "quantmedic.cli.explain:explain", "Print the page of a rule, cause, fact, topic or command."
    ),
    "show": LazyCommand("quantmedic.cli.show:show", "Print the tables of a case: layers, one layer, data sets."),
    "mcp": LazyCommand("quantmedic.cli.mcp:mcp", "Serve these commands to a coding agent, as tools."),
}


#: Environment variable that holds what the shell's script asks for. click would answer, too, and end the process.
ASKED_BY_SHELL = "_QUANTMEDIC_COMPLETE"


class Unexpected(Exception):
    """An error that click would take for the end of its input or of its output, with a code of its own."""


class Commands(click.Group):
    """All commands; what they raise reaches `main`.

    The module of one is imported when it is called: ``--help`` stays cheap.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].place.partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        own = [CompletionItem(name, help=each.help) for name, each in COMMANDS.items() if name.startswith(incomplete)]
        return [*own, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            refuse_command(args[0], [*COMMANDS])
            raise click.exceptions.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (EOFError, BrokenPipeError) as error:
            raise Unexpected from error


def print_completion(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    """The script by which a shell asks for words, such as for ~/.local/share/bash-completion/completions/quantmedic."""
    completions = None if shell is None or context.resilient_parsing else get_completion_class(shell)
    if completions is not None:
        own = completions(context.command, {}, "quantmedic", ASKED_BY_SHELL)
        print_format(ShellComplete.source(own) + "\n")  # that of bash would start one, to ask for its version
        context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="quantmedic", message="%(prog)s %(version)s")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=print_completion,
    help="Print the completion script for your shell and exit.",
)
def cli() -> None:
    """Find out why a quantized network lost accuracy, from measurements.

    \b
    Start here:
      quantmedic demo
      quantmedic diagnose float.onnx int8.onnx --representative rep.npz --validation val.npz -o report
      quantmedic explain D005
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point: turns every error into one readable message and exit code 2."""
    open_closed_descriptors()
    with guarded_streams():
        heed_signals()
        code = exit_code(arguments)
        if code != 2:
            code = code_of_output(code)
        leave_at_once_if_stuck(code)
    sys.exit(code)


def code_of_output(code: int) -> int:
    """The exit code of a command that is done: 2 where its output was lost."""
    try:
        sys.stdout.flush()
    except QuantmedicError as error:
        print_error(error)
        return 2
    return code


def exit_code(arguments: Sequence[str] | None) -> int:
    """Run a command, or answer a shell that completes a line; say what was wrong."""
    try:
        if asked := os.environ.get(ASKED_BY_SHELL):
            return shell_complete(cli, {}, "quantmedic", ASKED_BY_SHELL, asked)
        code: object = cli.main(args=arguments, prog_name="quantmedic", standalone_mode=False)
    except QuantmedicError as error:
        print_error(error)
    except click.exceptions.NoArgsIsHelpError as error:
        print_format(error.format_message() + "\n")
    except click.MissingParameter as error:
        print_error(as_incomplete(error))
    except click.ClickException as error:
        error.show()
    except (click.Abort, KeyboardInterrupt):
        print_line("interrupted", err=True)
        return interrupted_status()
    except BaseException as error:
        if was_interrupted():
            print_line("interrupted", err=True)
            return interrupted_status()
        if os.environ.get("QUANTMEDIC_DEBUG"):
            traceback.print_exc()
        print_error(as_refusal(error))
    else:
        return code if isinstance(code, int) else 0
    return 2


def as_incomplete(error: click.MissingParameter) -> QuantmedicError:
    """What is said of a command without an argument or an option that it needs."""
    assert error.ctx is not None and error.param is not None
    usage = " ".join(error.ctx.get_usage().removeprefix("Usage: ").split())
    shown = error.param.make_metavar(error.ctx) if error.param.param_type_name == "argument" else error.param.opts[0]
    return QuantmedicError(f"{error.ctx.info_name} needs {shown}", help=usage)


def as_refusal(error: BaseException) -> QuantmedicError:
    """What is said of an error that nothing expected."""
    if isinstance(error, Unexpected) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, MemoryError):
        help = "close other programs, or measure less at a time: --batch-size, --samples, --threads"
        return QuantmedicError("there is not enough memory", where=str(error), help=help)
    if isinstance(error, RecursionError):
        return QuantmedicError("an input is nested too deep", where=str(error), help="check it for endless nesting")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return QuantmedicError("a file name is too long", where=str(error.filename)[:200], help="check the path")
    if isinstance(error, SystemExit):
        return QuantmedicError(
            "code that was called tried to end the process",
            where=f"cause  SystemExit: {error.code}",
            help="a function of yours, or a package that it uses, calls sys.exit: let it raise an error instead",
        )
    return QuantmedicError(
        f"internal error: {type(error).__name__}: {error_text(error)}",
        help="this is a defect of quantmedic; QUANTMEDIC_DEBUG=1 shows where, please report it",
    )


if __name__ == "__main__":
    main()
