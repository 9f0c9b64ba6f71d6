"""Options of the command line as parameters of the Python functions, in the texts of errors.

Errors name options. Who called a function of Python reads what that function takes instead.
"""

import re

#: Parameters that are not called as their option is, with ``_`` for ``-``.
NAMES = {
    "budget": "prove",
    "log": "toolchain_logs",
    "metric-option": "metric_options",
    "min-sqnr": "min_sqnr_db",
    "rules": "folders",
    "settings": "settings_files",
    "stage": "stages",
    "toolchain-log": "toolchain_logs",
}
#: Options that have the name of their parameter.
SAME = frozenset(
    [
        "batch-size",
        "cluster",
        "device",
        "device-names",
        "device-outputs",
        "device-tensors",
        "expected-float-metric",
        "expected-quantized-metric",
        "labels",
        "max-drop",
        "mct-log",
        "memory",
        "metric",
        "metric-direction",
        "metric-output",
        "mode",
        "previous",
        "reference-outputs",
        "representative",
        "samples",
        "seed",
        "shard",
        "shards",
        "text-length",
        "threads",
        "timeout",
        "tokens",
        "toolchain",
        "validation",
        "write-fixed",
    ]
)
FLAGS = frozenset({"operator-error", "profile", "prove", "resume", "step-error"})
#: Options that are fields of a ``Preprocessing``.
PREPROCESSING = frozenset({"channel-order", "layout", "mean", "resize", "scale", "std"})
WORDS = "higher|lower|fast|exact|cer|wer|NHWC|NCHW"
#: A whole command, which stays as it is, or an option with what looks like its value.
_OPTION = re.compile(
    r"(?P<command>quantmedic [a-z-]+ .*)"
    rf"|--(?P<name>[a-z][a-z-]*)(?:[ =](?P<value>(?:{WORDS})\b|[^\s;,]*[A-Z0-9=:'][^\s;,]*))?"
)


def with_parameters(text: str) -> str:
    """The text with parameters in place of options: ``metric="top1"`` for ``--metric top1``."""
    return _OPTION.sub(_parameter, text)


def _parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if match["command"] is not None:
        return match[0]
    if name in FLAGS:
        return f"{name.replace('-', '_')}=True" + (f" {value}" if value else "")
    if name == "static":
        return "collect_static" + (f" {value}" if value else "")
    if name in PREPROCESSING:
        role, equals, given = (value or "").rpartition("=")
        made = f"quantmedic.Preprocessing({name.replace('-', '_')}={_literal(given) if given else '…'})"
        return f'preprocessing={{"{role}": {made}}}' if equals else made
    if name not in NAMES and name not in SAME:
        return match[0]
    parameter = NAMES.get(name) or name.replace("-", "_")
    key, equals, given = (value or "").partition("=")
    if equals:
        return f'{parameter}={{"{key}": {_literal(given)}}}'
    return f"{parameter}={_literal(value) if value else '…'}"


def _literal(text: str) -> str:
    """Numbers, seconds without their unit, and placeholders as they are; other texts in quotes."""
    if re.fullmatch(r"-?[\d.]+s?", text):
        return text.removesuffix("s")
    return text if text.isupper() or text.startswith(("'", '"')) else f'"{text}"'
