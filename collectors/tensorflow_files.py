"""TensorFlow's own models: what is run is what TensorFlow's converter or tf2onnx makes of them.

Both run in a process of their own, by the commands that an error prints where they are not installed.
"""

import shlex
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Literal

from quantmedic.collectors.data.archives import open_archive
from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.native.child import run_child
from quantmedic.collectors.native.runs import TimeLimitError, current_limit
from quantmedic.engine.cache_folder import cache_folder
from quantmedic.engine.errors import ModelError
from quantmedic.engine.input_files import require_regular
from quantmedic.engine.output_files import make_folder, move_file, scratch_folder
from quantmedic.engine.reading_limits import TEXT_BYTES, LimitError

Kind = Literal["SavedModel", "Keras model", "frozen graph"]
Target = Literal["onnx", "litert"]
Command = tuple[str, ...]
_SUFFIXES: dict[Target, str] = {"onnx": ".onnx", "litert": ".tflite"}
_PACKAGES: dict[Target, tuple[str, ...]] = {"onnx": ("tensorflow", "tf2onnx"), "litert": ("tensorflow",)}
_HDF5 = b"\x89HDF"
_KERAS_ENTRY = "config.json"
#: First byte of a GraphDef with nodes; that of an ONNX model is the tag of its version, 0x08.
_NODE_TAG = b"\n"
#: Names that stand for those of a graph that was not read.
_UNREAD = ("INPUT",), ("OUTPUT",)
_QUIET = "import os; os.environ.update(TF_CPP_MIN_LOG_LEVEL='3', CUDA_VISIBLE_DEVICES='-1')\n"
#: What nothing writes and what nothing reads are the ends of a graph.
_LIST_ENDS = """\
import sys
import tensorflow as tf
graph = tf.compat.v1.GraphDef()
graph.ParseFromString(open(sys.argv[1], "rb").read())
read = {name.split(":")[0].lstrip("^") for node in graph.node for name in node.input}
print("ends", *[node.name for node in graph.node if node.op == "Placeholder"])
print("ends", *[node.name for node in graph.node if node.name not in read and node.op not in ("NoOp", "Placeholder")])
"""


def tensorflow_kind(path: Path) -> Kind | None:
    """What kind of TensorFlow model lies there, by what it holds; None for anything else."""
    if path.is_dir():
        return "SavedModel" if (path / "saved_model.pb").is_file() else None
    try:
        require_regular(path)
        with path.open("rb") as stream:
            first = stream.read(4)
    except OSError:
        return None
    if path.name == "saved_model.pb":
        return "SavedModel"
    if first == _HDF5 or (first[:2] == b"PK" and _is_keras_archive(path)):
        return "Keras model"
    return "frozen graph" if path.suffix == ".pb" and first[:1] == _NODE_TAG else None


def _is_keras_archive(path: Path) -> bool:
    try:
        with open_archive(path) as archive:
            return _KERAS_ENTRY in archive.namelist()
    except (OSError, zipfile.BadZipFile, LimitError):
        return False


def convert_tensorflow(path: Path, kind: Kind, target: Target) -> tuple[Path, str]:
    """The file that the converter makes of a TensorFlow model, and a notice that says so.

    It is kept in the user's cache folder: a model that was converted before is not converted again.

    Raises:
        ModelError: TensorFlow or the converter is not installed, the converter fails, or the user has no private cache
            folder.
        TimeLimitError: The converter takes longer than a run of a model may.
    """
    source = path.parent if path.name == "saved_model.pb" else path
    missing = [package for package in _PACKAGES[target] if find_spec(package) is None]
    if missing:
        raise _not_installed(source, kind, target, missing)
    files = sorted(each for each in source.rglob("*") if each.is_file()) if source.is_dir() else [source]
    kept = cache_folder("converted")
    if kept is None:
        raise ModelError(
            "there is no private folder for the converted model",
            where="others can write to the cache folder or what it lies in, or it is not yours",
            help="set XDG_CACHE_HOME to a folder that only you can write to",
        )
    folder = kept / sha256_of(files)[:16]
    made = folder / f"{source.stem}{_SUFFIXES[target]}"
    ends = _ends_of_graph(source) if kind == "frozen graph" else _UNREAD
    if not made.is_file():
        make_folder(folder)
        with scratch_folder(folder) as place:
            fresh = place / made.name
            for command in _commands(source, kind, target, fresh, ends):
                _run(command, source)
            if not fresh.is_file():
                raise ModelError("TensorFlow's converter wrote no model", where=str(source))
            move_file(fresh, made)
    shown = _shell_lines(_commands(source, kind, target, Path(made.name), ends))
    return made, f"{source.name}, a TensorFlow {kind}, was measured as {made}, made by: {'; '.join(shown)}"


def _not_installed(source: Path, kind: Kind, target: Target, missing: Sequence[str]) -> ModelError:
    """What to paste where TensorFlow is installed."""
    made = Path(f"{source.stem}{_SUFFIXES[target]}")
    commands = [
        f"pip install {' '.join(_PACKAGES[target])}",
        *_shell_lines(_commands(source, kind, target, made, _UNREAD)),
    ]
    named = " (INPUT, OUTPUT: names of nodes)" if kind == "frozen graph" else ""
    return ModelError(
        f"a TensorFlow {kind} is converted before it is measured, and {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} not installed here",
        where=str(source),
        help=f"install it beside quantmedic, or convert where it is installed and give {made}{named}:\n  "
        + "\n  ".join(commands),
    )


def _commands(
    source: Path, kind: Kind, target: Target, made: Path, ends: tuple[Sequence[str], Sequence[str]]
) -> list[Command]:
    """The commands that convert a model, with ``python`` for this interpreter."""
    inputs, outputs = ends
    text = str(source)
    load = f"tf.keras.models.load_model({text!r})"
    if target == "onnx" and kind == "frozen graph":
        names = (",".join(f"{name}:0" for name in each) for each in (inputs, outputs))
        return [_tf2onnx("--graphdef", text, "--inputs", next(names), "--outputs", next(names), "--output", str(made))]
    if target == "onnx" and kind == "Keras model":
        # By way of a SavedModel, which keeps the names of the inputs.
        folder = str(made.with_suffix(""))
        export = _python(f"import tensorflow as tf; {load}.export({folder!r})")
        return [export, _tf2onnx("--saved-model", folder, "--output", str(made))]
    if target == "onnx":
        return [_tf2onnx("--saved-model", text, "--output", str(made))]
    makers = {
        "SavedModel": f"tf.lite.TFLiteConverter.from_saved_model({text!r})",
        "Keras model": f"tf.lite.TFLiteConverter.from_keras_model({load})",
        "frozen graph": "tf.compat.v1.lite.TFLiteConverter.from_frozen_graph"
        f"({text!r}, {list(inputs)!r}, {list(outputs)!r})",
    }
    return [_python(f"import tensorflow as tf; open({str(made)!r}, 'wb').write({makers[kind]}.convert())")]


def _python(code: str) -> Command:
    return "python", "-c", code


def _tf2onnx(*arguments: str) -> Command:
    return "python", "-m", "tf2onnx.convert", *arguments


def _shell_lines(commands: Sequence[Command]) -> list[str]:
    return [shlex.join(command) if command[1] != "-c" else f'python -c "{command[2]}"' for command in commands]


def _ends_of_graph(source: Path) -> tuple[list[str], list[str]]:
    """Names of the inputs and outputs of a frozen graph."""
    said = _run(("python", "-c", _LIST_ENDS, str(source)), source)
    lines = [line.split()[1:] for line in said.splitlines() if line.startswith("ends")]
    if len(lines) != 2 or not all(lines):
        raise ModelError("the frozen graph has no input or no output", where=str(source), help="freeze it again")
    return lines[0], lines[1]


def _text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(TEXT_BYTES.in_force).decode(errors="replace")


def _run(command: Command, source: Path) -> str:
    """What a command prints.

    Raises:
        ModelError: It fails.
        TimeLimitError: It takes longer than a run of a model may.
    """
    _, kind, code, *arguments = command
    code = code if kind == "-c" else f"import runpy; runpy.run_module({code!r}, run_name='__main__', alter_sys=True)"
    limit = current_limit()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complaints:
        try:
            status = run_child(_QUIET + code, arguments, stdout=said, stderr=complaints, seconds=limit)
        except subprocess.TimeoutExpired:
            raise TimeLimitError(f"{source}: TensorFlow's converter", limit or 0.0) from None
        if status == 0:
            return _text_of(said)
        lines = [line for line in _text_of(complaints).splitlines() if line.strip()]
    raise ModelError(
        "TensorFlow's converter refuses the model",
        where=[str(source), *lines[-1:]],
        help=f"see all that it says: {_shell_lines([command])[0]}",
    )
