"""Reading IRs: what is refused, by name and with a next step, and what is recognized."""

import os
from pathlib import Path

import pytest
from builders.openvino_models import save_openvino_pair

from quantmedic.collectors.from_openvino.front_end import FRONT_END
from quantmedic.collectors.from_openvino.openvino_file import read_ir
from quantmedic.collectors.from_openvino.openvino_models import open_models
from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import IR_BYTES, LimitError

HEAD = '<?xml version="1.0"?>\n<net name="net" version="11">\n'


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return save_openvino_pair(tmp_path)


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_ir(path)
    assert caught.value.help and path.stem in str(caught.value)
    return str(caught.value)


def test_irs_are_recognised_by_their_root(tmp_path):
    path = tmp_path / "model.xml"
    ours = [HEAD, "\ufeff  <!-- a -- note -->\n<net>", '<!-- a > b --><net name="x">']
    for text in (*ours, "<network>", "<rules><net/></rules>", ""):
        path.write_text(text, encoding="utf-8")
        assert FRONT_END.recognizes(path) is (text in ours), text
    path.write_text(HEAD)
    assert FRONT_END.recognizes(str(path.rename(path.with_suffix(".txt")))) is False
    assert not FRONT_END.recognizes(tmp_path / "missing.xml") and not FRONT_END.recognizes(3)
    (tmp_path / "folder.xml").mkdir()
    assert not FRONT_END.recognizes(tmp_path / "folder.xml")


#: Files that are no IR, and what is said of them.
NO_IRS = [
    (HEAD, "no element found"),
    ('<!DOCTYPE net [<!ENTITY a "b">]><net version="11">&a;</net>', "document type"),
    ('<!DOCTYPE net SYSTEM "file:///etc/passwd"><net version="11"/>', "document type"),
    ('<other version="11"/>', "its root is other"),
    ("<net/>", "version is ''"),
    (HEAD + '<layers><layer name="w"><data offset="-1" size="4"/></layer></layers></net>', "offset is '-1'"),
    (HEAD + '<layers><layer name="w"><data offset="0" size="1e3"/></layer></layers></net>', "size is '1e3'"),
]
#: What is replaced once in a sound IR, and what is said then.
DAMAGE = [
    ('version="11"', 'version="9"', "version 9"),
    ('offset="0"', 'offset="999999"', "cut off"),
    ('type="Convolution" version="opset1"', 'type="Conv9" version="opset99"', "cannot read"),
]


def test_damaged_files_are_refused_by_name(pair, tmp_path, subtests):
    sound, path = pair[0].read_text(), tmp_path / "model.xml"
    for text, says in NO_IRS:
        with subtests.test(text):
            path.write_text(text, encoding="utf-8")
            assert says in refusal(path)
    for old, new, says in DAMAGE:
        with subtests.test(new):
            pair[0].write_text(sound.replace(old, new, 1))
            assert says in refusal(pair[0])
    assert "missing.xml" in refusal(tmp_path / "missing.xml")
    path.write_text(HEAD + "<a>" * 100_000, encoding="utf-8")
    with pytest.raises(LimitError):
        read_ir(path)


def test_weights_that_are_missing_cut_off_or_elsewhere_are_named(pair, tmp_path_factory):
    weights, elsewhere = pair[0].with_suffix(".bin"), tmp_path_factory.mktemp("elsewhere") / "float.bin"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    assert "cut off" in refusal(pair[0])
    weights.unlink()
    text = refusal(pair[0])
    assert "missing" in text and "float.bin" in text
    elsewhere.write_bytes(content)
    os.symlink(elsewhere, weights)
    assert "outside its folder" in refusal(pair[0])


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
