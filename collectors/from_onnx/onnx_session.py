"""Running ONNX models with chosen tensors exposed, and checking that exposing them changed nothing."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from quantmedic.collectors.data.messages import error_line
from quantmedic.collectors.from_onnx.float_codes import has_float_codes
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.providers import CPU, RECORDED, chosen_providers, require_providers
from quantmedic.collectors.from_onnx.traits import lacks_zero_points, multiplies_codes, older_than_its_quantizers
from quantmedic.collectors.from_onnx.unsigned import unsigned_tap, with_unsigned_pairs
from quantmedic.collectors.measure.host import wants_exact_kernels
from quantmedic.collectors.measure.memory import is_short, return_free_blocks
from quantmedic.collectors.measure.models import Faithfulness
from quantmedic.collectors.measure.outputs import output_difference, same_outputs
from quantmedic.collectors.native.runs import run_native
from quantmedic.collectors.pair.feed import feed_error
from quantmedic.collectors.pair.graph import Tap
from quantmedic.engine.errors import ModelError, RefusedModelError
from quantmedic.engine.output_files import scratch_folder

Array = NDArray[np.generic]
Feed = Mapping[str, Array]
#: Sessions that the search for taps at fault may build before it gives up.
SEARCH_LIMIT = 48
#: Above this share of taps at fault the network is observed in simulation instead.
DROP_LIMIT = 0.5
#: Producer of translations of models of another runtime, as ``from_openvino`` makes them.
TRANSLATED = "quantmedic, of another runtime's model"
_TOKEN = re.compile(r"(_token_\d+|/duplicated(_token_\d+)?)+$")
_NAMED = "quantmedic:"
_SIZE = "quantmedic:size:"


def make_session(
    model: onnx.ModelProto,
    path: Path,
    threads: int,
    *,
    exposed: Sequence[str] = (),
    read: Sequence[str] = (),
    optimized: Path | None = None,
    plain: bool = False,
    in_float: bool = False,
    exact: bool = False,
) -> ort.InferenceSession:
    """A session of a model in memory, on the device that was chosen (``providers``).

    Args:
        model: The model.
        path: Where it came from, for messages.
        threads: Threads within an operator.
        exposed: Tensors that are outputs too.
        read: Tensors that cannot be fused away, as if they were outputs, but that nobody holds; see ``size_readers``.
        optimized: Where to save the graph that is really executed.
        plain: Execute the graph as it is written: quantizers in float, no integer kernels.
        in_float: Optimize the graph, but keep quantizers and what is between them in float.
        exact: Integer sums that cannot saturate, on every processor.

    Raises:
        ModelError: onnxruntime refuses the model; names the file and its words.
    """
    try:
        # Messages written one behind the other are read as one: so a large model is not copied for a few outputs.
        nodes, sizes = size_readers(model, read)
        more = onnx.ModelProto(graph=onnx.GraphProto(node=nodes, output=[*added_outputs(model, exposed), *sizes]))
        content = model.SerializeToString() + more.SerializeToString()
    except ValueError as error:
        raise ModelError(
            "models over 2 GB are not supported yet", where=str(path), help="diagnose a part of the network"
        ) from error
    # Which kernels the runtime chooses is another question than whether their sums saturate here.
    exact = (exact or wants_exact_kernels()) and optimized is None
    # Of operators that are written as functions its rewriting of quantizers makes graphs that it refuses itself.
    # Of codes that are small floats it takes the zero for the lowest one, and drops a Relu in front of the quantizer.
    plain = plain or has_float_codes(model)
    unfit = exact and (multiplies_codes(model) or lacks_zero_points(model))
    in_float = in_float or bool(model.functions) or unfit or _stands_for_another(model)
    failure: Exception | None = None
    # onnxruntime 1.32 fails to rewrite weights that several operators share, and convolutions of 4-bit activations.
    # What it refuses is tried in float, where nothing saturates either.
    for kept_in_float in dict.fromkeys((in_float, True)):
        options = _options(threads, optimized, plain=plain, in_float=kept_in_float, exact=exact)
        try:
            return _open_session(content, options, path)
        except ModelError:
            raise
        except Exception as error:
            failure = error
    assert failure is not None
    raise RefusedModelError(
        path,
        error_line(failure),
        runtime="onnxruntime",
        help=older_than_its_quantizers(model)
        or "does it run by itself? quantmedic show --environment tells the version of onnxruntime"
        + (f"; is there room for a copy of it in {optimized.parent.parent} (TMPDIR)?" if optimized else ""),
    ) from failure


def _stands_for_another(model: onnx.ModelProto) -> bool:
    """A translation is run as it is written: the integer kernels of onnxruntime are not those of its own runtime.

    They also fail where activations have a grid for each channel, as NNCF gives them to depthwise convolutions.
    """
    return bool(model.producer_name == TRANSLATED)


def _options(threads: int, optimized: Path | None, *, plain: bool, in_float: bool, exact: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # A pattern reserves all intermediate tensors at once, which most of the exposed ones leave unused.
    options.enable_mem_pattern = False
    # An arena keeps the most that it ever held.
    options.enable_cpu_mem_arena = not is_short()
    # Spinning threads of one session would take the cores from the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if in_float:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Of two quantizers in a row it makes one, though their steps differ.
        options.add_session_config_entry("session.disable_double_qdq_remover", "1")
    elif exact:
        options.add_session_config_entry("session.x64quantprecision", "1")
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return options


class _Session(ort.InferenceSession):  # type: ignore[misc]
    """A session whose check of the inputs takes as long as they are many, and not as their square."""

    def _validate_input(self, feed_input_names: Sequence[str]) -> None:
        # onnxruntime looks every input up in a list; where it checks them otherwise, nobody calls this.
        super()._validate_input(frozenset(feed_input_names))


def _open_session(content: bytes, options: ort.SessionOptions, path: Path) -> ort.InferenceSession:
    providers = list(chosen_providers())
    if providers != [CPU]:
        options.add_session_config_entry(RECORDED, "1")
    session = run_native(
        lambda: _Session(content, options, providers=providers),
        f"{path}: onnxruntime loads it",
        lambda: options.set_load_cancellation_flag(True),
    )
    require_providers(session)
    return session


def run(session: ort.InferenceSession, names: Sequence[str], feed: Feed, path: Path) -> list[Array]:
    """Outputs of one batch.

    Raises:
        ModelError: The model fails on this input; names the file and onnxruntime's words.
        TimeLimitError: It takes longer than the limit.
    """
    try:
        return run_session(session, names, feed, path)
    except ModelError:
        raise
    except Exception as error:
        raise feed_error(f"{path}: {error_line(error)}", feed) from error


def run_session(session: ort.InferenceSession, names: Sequence[str] | None, feed: Feed, path: Path) -> list[Array]:
    """The same with the errors of onnxruntime; all outputs where none is named.

    Raises:
        TimeLimitError: It takes longer than the limit.
    """
    options = ort.RunOptions()
    options.log_severity_level = 4

    def stop() -> None:
        options.terminate = True

    wanted = None if names is None else list(names)
    return_free_blocks()
    return run_native(lambda: session.run(wanted, dict(feed), options), str(path), stop)


def added_outputs(model: onnx.ModelProto, tensors: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """Outputs that expose tensors; those that are outputs or inputs already are left alone."""
    present = {value.name for value in (*model.graph.output, *model.graph.input)}
    return [onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(tensors) if name not in present]


def size_readers(
    model: onnx.ModelProto, tensors: Sequence[str], op_type: str = "Size"
) -> tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto]]:
    """Nodes that read nothing but the size of tensors, and their outputs.

    A tensor with a reader of its own is not fused away, and its kernels are those of a tensor that is an output; but
    it is let go of as soon as it was read. So groups of tensors that are exposed one after the other have, to the bit,
    the values that they have where all are exposed at once.
    """
    places = {name: place for place, node in enumerate(model.graph.node) for name in node.output}
    # onnxruntime computes first what the last one of these nodes reads: as soon as it can, hence in this order.
    found = sorted({name for name in tensors if name in places}, key=places.__getitem__, reverse=True)
    nodes = [onnx.helper.make_node(op_type, [name], [f"{_SIZE}{name}"]) for name in found]
    return nodes, [onnx.helper.make_empty_tensor_value_info(f"{_SIZE}{name}") for name in found]


def shapes_on(graph: OnnxGraph, tensors: Sequence[str], feed: Feed, threads: int) -> dict[str, tuple[int, ...]]:
    """Shapes that tensors of a model have on one batch, of which it holds none.

    Raises:
        ModelError: The model fails on this batch.
    """
    nodes, outputs = size_readers(graph.model, tensors, "Shape")
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    model.graph.node.extend(nodes)
    model.graph.output.extend(outputs)
    names = [output.name for output in outputs]
    if not names:
        return {}
    found = run(make_session(model, graph.path, threads), names, feed, graph.path)
    return {name.removeprefix(_SIZE): tuple(shape.tolist()) for name, shape in zip(names, found, strict=True)}


class ObservedModel:
    """The quantized model with taps that provably leave its outputs as they were.

    Attributes:
        session: The observed session.
        taps: Indexes of the taps that are exposed.
        model: The model that was observed, before anything was exposed.
        read: Every tap as the session shows it: onnxruntime may need its codes unsigned.
        observed: How faithful that is; simulated where dropping taps did not help.
    """

    def __init__(
        self,
        graph: OnnxGraph,
        taps: Sequence[Tap],
        feed: Feed,
        threads: int,
        plain: Sequence[Array] | None = None,
        every: Sequence[Tap] = (),
    ) -> None:
        """Find out which taps can be exposed; ``every`` are those that others expose, where these are one group."""
        self._graph, self._feed, self._threads = graph, feed, threads
        self._every = [tap.tensor for tap in every]
        self._plain = plain if plain is not None else self._outputs(make_session(graph.model, graph.path, threads))
        self.observed = Faithfulness(self._plain, False, 0.0)
        self.taps = list(range(len(taps)))
        self.model, self.read = graph.model, list(taps)
        if self._opens_unsigned(taps):
            return
        self.session, outputs = self._observe(self.taps)
        if same_outputs(self._plain, outputs):
            return
        self._built = 1
        kept: list[int] = []
        solved = self._search(self.taps, kept)
        if solved and len(kept) >= (1 - DROP_LIMIT) * len(taps):
            self.session, _ = self._observe(kept)
            self.taps = kept
            return
        self.observed = Faithfulness(self._plain, True, output_difference(self._plain, outputs))

    def _opens_unsigned(self, taps: Sequence[Tap]) -> bool:
        """Whether all taps can be read once signed pairs are rewritten as onnxruntime rewrites them."""
        model, changed = with_unsigned_pairs(self._graph.model)
        if not changed:
            return False
        signed, self.model = self.model, model
        try:
            self.session, outputs = self._observe(self.taps)
        except ModelError:  # codes that a subgraph reads, for one
            outputs = []
        if outputs and same_outputs(self._plain, outputs):
            self.read = [unsigned_tap(tap) if tap.tensor in changed else tap for tap in taps]
            return True
        self.model = signed
        return False

    def _outputs(self, session: ort.InferenceSession) -> list[Array]:
        return run(session, self._graph.outputs, self._feed, self._graph.path)

    def _observe(self, indexes: Sequence[int]) -> tuple[ort.InferenceSession, list[Array]]:
        names = [self.read[i].tensor for i in indexes]
        session = make_session(self.model, self._graph.path, self._threads, exposed=names, read=self._every)
        return session, self._outputs(session)

    def _search(self, group: list[int], kept: list[int]) -> bool:
        """Add to ``kept`` every tap of the group that changes nothing beside those already kept."""
        if self._built > SEARCH_LIMIT:
            return False
        self._built += 1
        _, outputs = self._observe([*kept, *group])
        if same_outputs(self._plain, outputs):
            kept.extend(group)
            return True
        if len(group) == 1:
            return True
        half = len(group) // 2
        return self._search(group[:half], kept) and self._search(group[half:], kept)


def executed_types(graph: OnnxGraph, threads: int) -> dict[str, str]:
    """What the runtime really executes: operator type of the optimized graph by the tensor written.

    Layout transformations rename tensors; nodes keep their names, up to a suffix ``_token_N``. So each node is named
    after the tensor that it writes before the graph is optimized.
    """
    named = named_after_outputs(graph.model)
    with scratch_folder() as folder:
        target = folder / "optimized.onnx"
        make_session(named, graph.path, threads, optimized=target)
        optimized = onnx.load_model(str(target), load_external_data=False)
    types = {}
    for node in optimized.graph.node:
        name = written_by(node.name)
        if name is not None:
            types[name] = node.op_type
    return types | {name: node.op_type for node in optimized.graph.node for name in node.output}


def named_after_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model whose nodes carry the name of the tensor that they write."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for node in named.graph.node:
        node.name = _NAMED + node.output[0]
    return named


def written_by(node: str) -> str | None:
    """The tensor that a node was named after, as the runtime calls it; None for nodes that the runtime added."""
    name = _TOKEN.sub("", node)
    return name.removeprefix(_NAMED) if name.startswith(_NAMED) else None
