"""The command line: its commands, and one readable message for every error.

Exit codes: 0 done, 2 could not do its job, 130 Ctrl-C, 143 SIGTERM; `check` and `fallback` have more.
"""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from quantmedic.cli.groups import CONTEXT
from quantmedic.cli.lazy import LazyCommand, LazyGroup
from quantmedic.cli.terminal import fail, heed_signals, interrupted_status, leave_at_once_if_stuck
from quantmedic.engine.errors import QuantmedicError

COMMANDS = {
    "demo": LazyCommand("quantmedic.cli.diagnose:demo", "Diagnose an embedded network with a calibration mistake."),
    "diagnose": LazyCommand("quantmedic.cli.diagnose:diagnose", "Measure two models, judge causes, write a report."),
    "collect": LazyCommand("quantmedic.cli.collect:collect", "Measure only: write a case file that `report` judges."),
    "weights": LazyCommand("quantmedic.cli.weights:weights", "Compare the weights of two safetensors checkpoints."),
    "report": LazyCommand("quantmedic.cli.report:report", "Judge a stored case again, without models or data."),
    "import": LazyCommand("quantmedic.cli.import_files:import_", "Read files of a toolchain: settings, logs, tables."),
    "check": LazyCommand("quantmedic.cli.check:check", "Apply a policy: fail where the quantized model got worse."),
    "baseline": LazyCommand("quantmedic.cli.baseline:baseline", "Keep known findings, so that only new ones fail."),
    "trend": LazyCommand("quantmedic.cli.trend:trend", "Plot the figures that `check --record` kept, run by run."),
    "compare": LazyCommand("quantmedic.cli.compare:compare", "Put two cases side by side: what healed, what broke."),
    "sensitivity": LazyCommand("quantmedic.cli.sensitivity:sensitivity", "Measure what each layer does to the output."),
    "fix": LazyCommand("quantmedic.cli.fix:fix", "Carry out the prescription; write the model if it is better."),
    "fallback": LazyCommand("quantmedic.cli.fallback:fallback", "Find few layers that leave int8 to meet a goal."),
    "calibrations": LazyCommand(
        "quantmedic.cli.calibrations:calibrations", "Find the calibration that suits a float model best."
    ),
    "debugger": LazyCommand("quantmedic.cli.debugger:debugger", "Measure each quantized operator alone, as LiteRT's."),
    "show": LazyCommand("quantmedic.cli.show:show", "Print the tables of a case: layers, one layer, data sets."),
    "explain": LazyCommand("quantmedic.cli.rules:explain", "Print the manual page of a rule, cause, fact or topic."),
    "rules": LazyCommand("quantmedic.cli.rules:rules", "List the rules; write and test your own."),
    "doctor": LazyCommand("quantmedic.cli.setup:doctor", "Show versions, optional packages and CPU features."),
    "completion": LazyCommand("quantmedic.cli.setup:completion", "Print the completion script for your shell."),
}


@click.group(cls=LazyGroup, table=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="quantmedic", message="%(prog)s %(version)s")
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
    heed_signals()
    try:
        cli.main(args=arguments, prog_name="quantmedic", standalone_mode=False)
    except QuantmedicError as error:
        fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(interrupted_status())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            fail(f"a file name is too long\n  {str(error.filename)[:200]}\nhelp: check the path")
        if os.environ.get("QUANTMEDIC_DEBUG"):
            raise
        fail(
            f"internal error: {type(error).__name__}: {error}\n"
            "help: this is a defect of quantmedic; QUANTMEDIC_DEBUG=1 shows where, please report it"
        )
    finally:
        leave_at_once_if_stuck()
    sys.exit(0)


if __name__ == "__main__":
    main()
