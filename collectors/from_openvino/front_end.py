"""OpenVINO models as a front end."""

import re
from pathlib import Path
from typing import ClassVar

from quantmedic.collectors.from_openvino.float_model import read_openvino_float
from quantmedic.collectors.from_openvino.models import OpenVINOModels, open_models
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.engine.files import require_regular

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
    editor: ClassVar[str] = "quantmedic.trials.from_openvino.edit"

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
        """What the file of a float model tells by itself."""
        return read_openvino_float(path)


FRONT_END: FrontEnd = _OpenVINOFrontEnd()
