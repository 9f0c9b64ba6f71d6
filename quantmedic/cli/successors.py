"""Commands and options that earlier versions had, or that people type, and what is meant."""

from quantmedic.engine.errors import QuantmedicError

_OVER_TIME = (
    "plot report.json, metrics.json or check.xml (JUnit) of each run in your CI system; --baseline fails on what is new"
)
#: What to do instead, by what is typed after ``quantmedic``: a command, or a command and its option.
SUCCESSORS = {
    **{
        kind: f"quantmedic search {kind} FLOAT{'' if kind == 'calibrations' else ' QUANT'} …"
        for kind in ("sensitivity", "fallback", "calibrations", "debugger")
    },
    "rules": "quantmedic explain --list rules|thresholds|facts, --new-rule NAME or --test-rules FOLDER",
    "record": "quantmedic collect FLOAT QUANT -v VAL --outputs-only FILE writes them",
    "case": "quantmedic show CASE --anonymous FILE writes a case for others",
    "baseline": "quantmedic check CASE --write-baseline FILE keeps findings, --prune-baseline removes what is gone",
    "doctor": "quantmedic show --environment",
    "completion": "quantmedic --completion SHELL",
    "report": "quantmedic diagnose CASE judges a stored case again, quantmedic diagnose FOLDER all shards in it",
    "weights": "quantmedic diagnose FLOAT QUANT --weights-only compares the weights of two checkpoints, --tokens FILE "
    "runs them too",
    "trend": f"quantmedic check FLOAT QUANT -o FOLDER for each run, and {_OVER_TIME}",
    "watch": (
        "let a tool that watches files run diagnose, such as: ls *.onnx | entr quantmedic diagnose FLOAT QUANT; "
        "quantmedic compare BEFORE AFTER says what healed"
    ),
    **{
        f"{command} --metric-{key}": f"write --metric-option {key}={value}"
        for command in ("diagnose", "collect", "check", "fix", "search")
        for key, value in {"direction": "lower", "output": "NAME"}.items()
    },
    **{
        f"{command} --shard": "measure each shard with quantmedic collect … --shard K/N -o shards/….case, then give "
        "their folder with --shards"
        for command in ("diagnose", "check", "fix")
    },
    **{
        f"{command} --{key}": f"write --preprocess {key.replace('-', '_')}=VALUE"
        for command in ("diagnose", "collect", "check", "fix", "search")
        for key in ("scale", "mean", "std", "layout", "channel-order", "resize")
    },
    "fix --tokens": "texts are for language models, whose prescription is printed and not run: quantmedic diagnose "
    "FLOAT QUANT --tokens FILE writes it",
    **{
        f"check --{option}": f"diagnose with --{option}, then check its report; rules and thresholds stand in a policy"
        for option in (
            *("prove", "budget", "mode", "seed", "batch-size", "stage", "reference-outputs", "device-outputs"),
            *(
                "device-tensors",
                "expected-float-metric",
                "operator-error",
                "step-error",
                "profile",
                "shards",
                "cluster",
            ),
            *("rules", "select", "ignore", "threshold", "previous", "toolchain"),
        )
    },
    "check --record": _OVER_TIME,
    "check --label": _OVER_TIME,
    "check --model": _OVER_TIME,
}

#: Options by what other tools call them; what is only misspelt is found by its letters.
MEANT = {
    "--representative": ("--cal", "--calib", "--calib-data", "--calibration", "--calibration-data"),
    "--validation": ("--data", "--dataset", "--eval", "--test", "--val"),
    "--threshold": ("--thresholds", "--threshold-file"),
    "--output": ("--out", "--out-dir", "--output-dir"),
}


def meant_option(typed: str) -> str | None:
    """The option that somebody means who knows another tool."""
    return next((name for name, others in MEANT.items() if typed in others), None)


def refuse_removed(typed: str) -> None:
    """Name the successor of a command or an option that is not there; do nothing for any other word.

    Raises:
        QuantmedicError: It has a successor.
    """
    if typed in SUCCESSORS:
        raise QuantmedicError(f"there is no quantmedic {typed}", help=SUCCESSORS[typed])
