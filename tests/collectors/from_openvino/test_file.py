"""Reading IRs: what is refused, by name and with a next step, and what is recognized."""

import os
from pathlib import Path

import pytest
from builders.openvino_models import save_openvino_pair

from quantmedic.collectors.from_openvino.file import read_ir, telling_line
from quantmedic.collectors.from_openvino.front_end import FRONT_END
from quantmedic.collectors.from_openvino.models import open_models
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.engine.errors import ModelError
from quantmedic.engine.limits import IR_BYTES, LimitError

HEAD = '<?xml version="1.0"?>\n<net name="net" version="11">\n'


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return save_openvino_pair(tmp_path)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_ir(path)
    assert caught.value.help and path.stem in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        (HEAD, True),
        ("\ufeff  <!-- a -- note -->\n<net>", True),
        ('<!-- a > b --><net name="x">', True),
        ("<network>", False),
        ("<rules><net/></rules>", False),
        ("", False),
    ],
)
def test_irs_are_recognised_by_their_root(tmp_path, text, is_ours):
    path = tmp_path / "model.xml"
    path.write_text(text, encoding="utf-8")
    assert FRONT_END.recognizes(path) is is_ours
    assert FRONT_END.recognizes(str(path.rename(path.with_suffix(".txt")))) is False


def test_other_objects_and_missing_files_are_not_ours(tmp_path):
    assert not FRONT_END.recognizes(tmp_path / "missing.xml") and not FRONT_END.recognizes(3)
    (tmp_path / "folder.xml").mkdir()
    assert not FRONT_END.recognizes(tmp_path / "folder.xml")


def test_a_saved_pair_is_ours(pair):
    assert [front_end_of(path).name for path in pair] == ["openvino", "openvino"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD, "no element found"),
        (HEAD + "<layers>", "no element found"),
        ('<!DOCTYPE net [<!ENTITY a "b">]><net version="11">&a;</net>', "document type"),
        ('<!DOCTYPE net SYSTEM "file:///etc/passwd"><net version="11"/>', "document type"),
        ('<other version="11"/>', "its root is other"),
        ('<net version="eleven"/>', "version is 'eleven'"),
        ("<net/>", "version is ''"),
        (HEAD + '<layers><layer name="w"><data offset="-1" size="4"/></layer></layers></net>', "offset is '-1'"),
        (HEAD + '<layers><layer name="w"><data offset="0" size="1e3"/></layer></layers></net>', "size is '1e3'"),
    ],
)
def test_damaged_xml_is_refused(tmp_path, text, says):
    path = tmp_path / "model.xml"
    path.write_text(text, encoding="utf-8")
    assert says in refusal(path)


def test_elements_without_end_are_refused(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text(HEAD + "<a>" * 100_000, encoding="utf-8")
    with pytest.raises(LimitError):
        read_ir(path)


@pytest.mark.parametrize("version", [9, 12])
def test_other_versions_are_refused(pair, version):
    path = pair[0]
    path.write_text(path.read_text().replace('version="11"', f'version="{version}"', 1))
    text = refusal(path)
    assert f"version {version}" in text


def test_missing_weights_are_named(pair):
    pair[0].with_suffix(".bin").unlink()
    text = refusal(pair[0])
    assert "missing" in text and "float.bin" in text


def test_weights_that_are_cut_off_are_named(pair):
    weights = pair[0].with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "cut off" in refusal(pair[0])


def test_constants_outside_of_the_weights_are_named(pair):
    path = pair[0]
    path.write_text(path.read_text().replace('offset="0"', 'offset="999999"', 1))
    assert "cut off" in refusal(path)


def test_weights_outside_of_the_folder_are_refused(pair, tmp_path_factory):
    weights = pair[0].with_suffix(".bin")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "float.bin"
    weights.rename(elsewhere)
    os.symlink(elsewhere, weights)
    assert "outside its folder" in refusal(pair[0])


def test_operators_of_a_newer_release_are_refused(pair):
    path = pair[0]
    path.write_text(path.read_text().replace('type="Convolution" version="opset1"', 'type="Conv9" version="opset99"'))
    assert "cannot read" in refusal(path)


def test_a_missing_file_is_named(tmp_path):
    assert "missing.xml" in refusal(tmp_path / "missing.xml")


def test_files_are_bounded(pair, monkeypatch):
    monkeypatch.setenv(IR_BYTES.variable, "100")
    with pytest.raises(LimitError):
        read_ir(pair[0])


def test_a_pair_that_is_swapped_is_refused(pair):
    with pytest.raises(ModelError, match="swapped"):
        open_models(pair[1], pair[0])


def test_a_float_file_tells_its_inputs(pair):
    facts = FRONT_END.read_float(pair[0]).facts.float_model
    assert facts.format == "openvino" and facts.inputs == ("image (N, 3, 16, 16) float32",)
    assert facts.nonfinite_constants == 0 and facts.constant_bytes == pair[0].with_suffix(".bin").stat().st_size


def test_openvino_is_quoted_behind_the_names_of_its_source_files():
    error = RuntimeError("Exception from src/core.cpp:117:\nException from src/plugin.cpp:54:\nCheck 'x' failed\n\n")
    assert telling_line(error) == "Check 'x' failed"
    assert telling_line(RuntimeError("Exception from src/core.cpp:117:")) == "Exception from src/core.cpp:117:"
    assert telling_line(ValueError("")) == "ValueError"
