"""OpenVINO models as a front end."""

import re
from pathlib import Path
from typing import ClassVar

import numpy as np

from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_graph import graph_of
from quantmedic.collectors.from_openvino.openvino_models import OpenVINOModels, open_models
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.engine.case.facts import FloatFacts, ModelFacts
from quantmedic.engine.input_files import require_regular

_SUFFIX = ".xml"
#: How an IR begins: its root is ``net``, behind a declaration and comments.
_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:(?!-->).)*-->\s*)*<net[\s>]", re.DOTALL
)
#: Bytes in which that is looked for.
_HEAD = 4096


class _OpenVINOFrontEnd(FileFrontEnd):
    """Reads ``.xml`` files whose root element is ``net``."""

    name: ClassVar[str] = "openvino"
    title: ClassVar[str] = "OpenVINO"

    def recognizes(self, model: object) -> bool:
        """By suffix and root element: other XML files are somebody else's."""
        if not isinstance(model, str | Path) or Path(model).suffix.lower() != _SUFFIX:
            return False
        try:
            require_regular(model)
            with Path(model).open("rb") as stream:
                return _START.match(stream.read(_HEAD)) is not None
        except OSError:
            return False

    def open_paths(self, float_path: Path, quantized_path: Path) -> OpenVINOModels:
        """Open two files; neither is run."""
        return open_models(float_path, quantized_path)

    def read_float_path(self, path: Path) -> FloatModel:
        """What the two files of a float model tell by themselves.

        Raises:
            ModelError: It cannot be read.
        """
        graph = graph_of(read_ir(path))
        known = [(name, each.values) for name, each in graph.constants.items() if each.values is not None]
        broken = [name for name, values in known if not np.isfinite(values).all()]
        facts = FloatFacts(
            format="openvino",
            operators=len(graph.operators),
            inputs=tuple(f"{s.name} {shape_text(s.shape or ())} {s.dtype}" for s in graph.input_specs),
            dynamic_inputs=tuple(s.name for s in graph.input_specs if None in (s.shape or ())[1:]),
            constant_bytes=len(graph.file.content),
            nonfinite_constants=len(broken),
            first_nonfinite_constant=broken[0] if broken else None,
        )
        changes = {
            "float_model": facts,
            "bytes_float": sum(file.stat().st_size for file in graph.file.files),
            "float_is_quantized": graph.is_quantized,
        }
        described = ModelFacts(name=path.name).model_copy(update=changes)
        return FloatModel(described, tuple(input_specs(graph)), tuple(graph.file.files), tuple(graph.notices))


FRONT_END: FrontEnd = _OpenVINOFrontEnd()
