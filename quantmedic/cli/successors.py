"""Commands and options that earlier versions had, or that people type, and what is meant."""

from difflib import get_close_matches

from quantmedic.engine.errors import QuantmedicError

_OVER_TIME = (
    "plot report.json, metrics.json or check.xml (JUnit) of each run in your CI system; --baseline fails on what is new"
)
#: What to do instead of a command that is not there.
COMMANDS = {
    "baseline": "quantmedic check CASE --write-baseline FILE keeps findings, --prune-baseline removes what is gone",
    "calibrations": "quantmedic search calibrations FLOAT …",
    "case": "quantmedic show CASE --anonymous FILE writes a case for others",
    "completion": "quantmedic --completion SHELL",
    "debugger": "quantmedic search debugger FLOAT QUANT …",
    "doctor": "quantmedic show --environment",
    "fallback": "quantmedic search fallback FLOAT QUANT …",
    "record": "quantmedic collect FLOAT QUANT -v VAL --outputs-only FILE writes them",
    "report": "quantmedic diagnose CASE judges a stored case again, several of them as one measurement",
    "rules": "quantmedic explain --list rules|thresholds|facts, --new-rule NAME or --test-rules FOLDER",
    "sensitivity": "quantmedic search sensitivity FLOAT QUANT …",
    "trend": f"quantmedic check FLOAT QUANT -o FOLDER for each run, and {_OVER_TIME}",
    "watch": "let a tool that watches files run diagnose, such as: ls *.onnx | entr quantmedic diagnose FLOAT QUANT; "
    "quantmedic compare BEFORE AFTER says what healed",
    "weights": "quantmedic diagnose FLOAT QUANT --weights-only compares the weights of two checkpoints, --tokens FILE "
    "runs them too",
}
#: What to write instead of an option, where a command does not have it.
OPTIONS = {
    **{
        f"--{key}": f"write --preprocess {key.replace('-', '_')}=VALUE"
        for key in ("scale", "mean", "std", "layout", "channel-order", "resize")
    },
    "--data-sets": "write --table data-sets",
    "--loss-budget": "write --table loss-budget",
    "--mct-log": "give the folder to --log",
    "--metric-direction": "write --metric-option direction=higher or direction=lower",
    "--metric-output": "write --metric-option output=NAME",
    "--operator-error": "write --step-error: each operator on what the deployed model computed before it",
    "--pages": "give the folder to --output",
    **dict.fromkeys(
        ("--shard", "--shards"),
        "--cluster spreads the samples; or collect each part of the data by itself, then: quantmedic diagnose *.case",
    ),
    "--thresholds": "give the file to --threshold",
    "--tokens": "texts are for language models, whose prescription is printed and not run: quantmedic diagnose FLOAT "
    "QUANT --tokens FILE writes it",
    **dict.fromkeys(("--record", "--label", "--model"), _OVER_TIME),
    **dict.fromkeys(("--select", "--ignore"), "write it into [rules] of the policy, or give it to quantmedic diagnose"),
    "--rules": "name the folder in [rules] of the policy",
    "--threshold": "write it into [thresholds] of the policy",
}
#: Options by what other tools call them; what is only misspelt is found by its letters.
MEANT = {
    "--representative": ("--cal", "--calib", "--calib-data", "--calibration", "--calibration-data"),
    "--validation": ("--data", "--dataset", "--eval", "--test", "--val"),
    "--output": ("--out", "--out-dir", "--output-dir"),
}


def meant_option(typed: str) -> str | None:
    """The option that somebody means who knows another tool."""
    return next((name for name, others in MEANT.items() if typed in others), None)


def refuse_command(typed: str, known: list[str]) -> None:
    """Name the successor of a command that is not there, also where it is misspelt; else do nothing.

    Raises:
        QuantmedicError: It has a successor.
    """
    near = get_close_matches(typed, [*known, *COMMANDS], 1)
    if near and near[0] in COMMANDS:
        raise QuantmedicError(f"there is no quantmedic {near[0]}", help=COMMANDS[near[0]])


def refuse_option(command: str, typed: str) -> None:
    """Name the successor of an option that a command does not have, or who has it; else do nothing.

    Raises:
        QuantmedicError: There is one.
    """
    from quantmedic.api.keywords import NAMES  # the list of commands needs it not

    judged = "; quantmedic check judges the report" if command == "check" else ""
    others = f"quantmedic diagnose takes it{judged}" if typed[2:] in NAMES else None
    if help := OPTIONS.get(typed, others):
        raise QuantmedicError(f"quantmedic {command} has no {typed}", help=help)
