"""Every limit of what is read and waited for: how much, its one wording, and what raises it.

A limit stops what is hostile or a mistake, far above what networks and their tools write.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from quantmedic.engine.errors import QuantmedicError

_PREFIX = "QUANTMEDIC_MAX_"


class LimitError(QuantmedicError):
    """A file, text or run is larger than its limit; says what, how large, the limit and what raises it."""


@dataclass(frozen=True)
class Limit:
    """One limit: ``what`` has at most ``most`` ``unit``.

    Args:
        name: Its name; in capitals behind ``QUANTMEDIC_MAX_``, the environment variable that raises it.
        what: What is limited, as the subject of a sentence.
        unit: What is counted: bytes, levels, values, digits, rows, seconds.
        most: The limit where nothing raises it.
        option: Option of the command line that raises it, too.
    """

    name: str
    what: str
    unit: str
    most: int
    option: str | None = None

    @property
    def variable(self) -> str:
        return _PREFIX + self.name.upper()

    @property
    def in_force(self) -> int:
        """The limit, as the environment has raised or lowered it.

        Raises:
            QuantmedicError: The environment variable holds no whole number above 0.
        """
        given = os.environ.get(self.variable)
        if given is None:
            return self.most
        if not (given.isascii() and given.isdigit() and len(given) <= 18 and int(given) > 0):
            raise QuantmedicError(
                "the environment sets a limit that is no whole number above 0",
                where=f"{self.variable}={given[:80]}",
                help=f"write {self.variable}={self.most}, or unset it",
            )
        return int(given)

    def check(self, found: int, where: str | Path) -> None:
        """Refuse what is larger.

        Args:
            found: How much there is, in ``unit``.
            where: File or option.

        Raises:
            LimitError: There is more than the limit.
        """
        if found > self.in_force:
            raise self.error_for(where, self.amount(found))

    def error_for(self, where: str | Path, found: str = "more") -> LimitError:
        """The error for what is larger; ``found`` says how large where that is known."""
        limit, raised = self.in_force, f"{self.variable}={2 * self.in_force}"
        help = f"raise the limit with {f'{self.option}, or ' if self.option else ''}{raised}, if you trust it"
        verb = "takes" if self.unit == "seconds" else "has"
        return LimitError(
            f"{self.what} {verb} too many {self.unit}: {found}, the limit is {self.amount(limit)}",
            where=str(where),
            help=help,
        )

    def amount(self, count: int) -> str:
        """A number with its unit, bytes as MiB where there are many."""
        if self.unit == "bytes" and count >= 1 << 20:
            return f"{count / (1 << 20):.1f} MiB"
        return f"{count} {self.unit}"


def beyond_readers(where: str | Path) -> LimitError:
    """The error for what is nested deeper than the readers of JSON, YAML and TOML go, whatever limit is set."""
    return LimitError(
        "a file of nested lists and tables has too many levels: more than can be read at all",
        where=str(where),
        help="write it with fewer levels; no setting raises this limit",
    )


TEXT_BYTES = Limit("text_bytes", "a file that is read whole", "bytes", 64 << 20)
YAML_BYTES = Limit("yaml_bytes", "a YAML file", "bytes", 4 << 20)
YAML_VALUES = Limit("yaml_values", "a YAML file, its aliases written out,", "values", 200_000)
POLICY_BYTES = Limit("policy_bytes", "a policy", "bytes", 1 << 20)
POLICY_DEPTH = Limit("policy_depth", "a policy", "levels", 32)
JSON_LISTS = Limit("json_lists", "a JSON file", "lists and objects", 2_000_000)
CASE_BYTES = Limit("case_bytes", "a case file, decompressed,", "bytes", 1 << 30)
ARRAY_BYTES = Limit("array_bytes", "an array that is read at once", "bytes", 1 << 30)
IMAGE_PIXELS = Limit("image_pixels", "an image", "pixels", 100_000_000)
#: What protobuf, and what a flatbuffer, can hold; larger weights stand in files of their own.
ONNX_BYTES = Limit("onnx_bytes", "an ONNX file", "bytes", (2 << 30) - 1)
LITERT_BYTES = Limit("litert_bytes", "a LiteRT file", "bytes", (2 << 30) - 1)
IR_BYTES = Limit("ir_bytes", "a file of an OpenVINO IR", "bytes", (2 << 30) - 1)
EVENT_BYTES = Limit("event_bytes", "an event file of MCT", "bytes", 256 << 20)
ZIP_TABLE_BYTES = Limit("zip_table_bytes", "the table of contents of an archive", "bytes", 16 << 20)
SAMPLES = Limit("samples", "a data set", "samples", 5_000_000)
LABEL_ROWS = Limit("label_rows", "a file of labels", "rows", 5_000_000)
#: Each takes about 26 kB until it is judged.
IMPORTED_LAYERS = Limit("imported_layers", "a file of a toolchain", "tensors and layers", 50_000)
DEPTH = Limit("depth", "a file of nested lists and tables", "levels", 64)
DIGITS = Limit("digits", "a whole number", "digits", 300)
#: Beyond those of any machine: each takes memory before it does anything.
THREADS = Limit("threads", "a run", "threads", 1024)
RUN_SECONDS = Limit("run_seconds", "a run of a model on one batch", "seconds", 600, "--timeout")
LOG_SECONDS = Limit("log_seconds", "the search of logs for patterns of your rules", "seconds", 60)
TOKENIZER_SECONDS = Limit("tokenizer_seconds", "the tokenizer of a language model", "seconds", 300)
#: Of a process of its own: one with 256,000 tokens and 500,000 merges takes 0.8 GB.
TOKENIZER_BYTES = Limit("tokenizer_bytes", "the tokenizer of a language model", "bytes", 2 << 30)

#: All of them, as the manual lists them.
LIMITS = tuple(limit for limit in [*globals().values()] if isinstance(limit, Limit))
