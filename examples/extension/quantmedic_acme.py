"""An extension of quantmedic: models of a compiler, which are ONNX models in gzip, and the settings that it writes.

``pip install .`` is all that it takes: quantmedic finds the entry points of ``pyproject.toml``. Which modules of
quantmedic an extension may rely on stands in the manual, page ``extensions``.
"""

import gzip
import json
from pathlib import Path

import onnx

from quantmedic.collectors.data.hashes import sha256_of
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph
from quantmedic.collectors.from_onnx.onnx_models import OnnxModels
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FileFrontEnd, FrontEnd
from quantmedic.collectors.measure.models import Description
from quantmedic.collectors.pair.same_network import match_files
from quantmedic.collectors.pair.tensor_pairs import pairs_of
from quantmedic.collectors.toolchain_files.formats import Format, Imported
from quantmedic.collectors.toolchain_files.settings_files import read_text
from quantmedic.engine.case.facts import ModelFacts, SettingsFacts
from quantmedic.engine.errors import DataError, ModelError
from quantmedic.trials.edit import Remedies
from quantmedic.trials.from_onnx.onnx_remedies import edit


class AcmeModels(OnnxModels):
    """A pair of models, which runs as ONNX models do."""

    framework = "acme"

    def describe(self) -> Description:
        """What a case says of the files."""
        paths = [graph.path for graph in (self.float_graph, self.quantized)]
        facts = ModelFacts(name=paths[1].name, framework=self.framework, format=self.quantized.format)
        float_hash, quantized_hash = (sha256_of([path]) for path in paths)
        return Description(facts, frozenset(), (paths[0].name, paths[1].name), (float_hash, quantized_hash))


class AcmeFrontEnd(FileFrontEnd):
    """Reads ``.acme`` files."""

    name, title = "acme", "Acme"

    def recognizes(self, model: object) -> bool:
        return isinstance(model, str | Path) and Path(model).suffix == ".acme"

    def open_paths(self, float_path: Path, quantized_path: Path) -> AcmeModels:
        floats, quantized = unpack(float_path), unpack(quantized_path)
        matched = match_files(floats, quantized)
        return AcmeModels(floats, quantized, matched, pairs_of(floats, quantized, matched))

    def read_float_path(self, path: Path) -> FloatModel:
        return FloatModel(ModelFacts(name=unpack(path).path.name), files=(path,))


def unpack(path: Path) -> OnnxGraph:
    """A file as a graph."""
    try:
        return parse(path, onnx.load_model_from_string(gzip.decompress(path.read_bytes())))
    except Exception as error:  # gzip and protobuf complain in many types
        raise ModelError("not a readable Acme model", where=f"{path}: {error}", help="compile it again") from error


def read_settings(path: Path) -> Imported:
    """What the compiler was asked for, from a file such as ``{"acme": {"method": "minmax", "per_channel": true}}``."""
    try:
        asked = json.loads(read_text(path))["acme"]
        facts = {"calibration_method": asked["method"], "per_channel_weights": asked["per_channel"]}
        return Imported(settings=SettingsFacts.model_validate(facts))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("not readable settings of Acme", where=f"{path}: {error}", help="compile again") from error


FRONT_END: FrontEnd = AcmeFrontEnd()
REMEDIES = Remedies(edit, learns=True)
SETTINGS = Format("Acme settings", "Acme", lambda name, text: '"acme"' in text, read_settings)
