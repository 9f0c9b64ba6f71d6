"""Folders of language models and texts from strangers: what is damaged, or far too large, is refused by name."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import checkpoints as made

from quantmedic.collectors.from_checkpoint.checkpoint_name import architecture_of
from quantmedic.collectors.from_language_model.tokenizer import encode
from quantmedic.collectors.from_language_model.tokens import read_texts
from quantmedic.engine.errors import ModelError, QuantmedicError

pytestmark = pytest.mark.thorough

VOCABULARY = 512
MB = 1 << 20
CONFIG = {
    "model_type": "llama",
    "hidden_size": made.HIDDEN,
    "intermediate_size": made.INNER,
    "vocab_size": made.VOCABULARY,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
#: Fields that ask for more than any folder holds, and those that cannot be built.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"num_hidden_layers": 60_000},
    {"num_hidden_layers": 10**9},
    {"model_type": "bart", "is_decoder": True, "decoder_layers": 60_000, "d_model": 256},
    {"model_type": "llama4", "text_config": {**CONFIG, "num_hidden_layers": 10**9}},
    {"model_type": "xlstm", "num_blocks": 10**9, "num_hidden_layers": None},
    {"model_type": "mixtral", "num_local_experts": 60_000},
    {"head_dim": 65_000},
    {"hidden_size": 10**30, "intermediate_size": 10**200},
    {"rope_theta": 10**100},
    {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
    {"model_type": ["llama"]},
    {"num_attention_heads": 0},
)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(member: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as whole:
        whole.writestr("ids.npy", member)
    return file.getvalue()


def hostile_arrays() -> Iterator[tuple[str, bytes]]:
    """Names and contents of files that hold no token ids, or more of them than there is room for."""
    sound = npy(np.arange(40).reshape(2, 20))
    shape = b"(2, 20)"
    bomb = sound.replace(shape, b"(100000, 20000)"[: len(shape)].ljust(len(shape))) + bytes(1)
    yield "cut.npy", sound[:-9]
    yield "header.npy", sound[:40]
    yield "cut.npz", archive(sound)[:-40]
    yield "member.npz", archive(sound[:-9])
    yield "empty.npz", b""
    yield "text.npy", b"5 6 7 8"
    yield "pickle.npy", b"\x80\x04K\x01."
    yield "objects.npy", sound.replace(b"'<i8'", b"'|O' ")
    yield "negative.npy", sound.replace(shape, b"(-2,-20)"[:7])
    yield "bomb.npy", bomb
    yield "zeros.npz", archive(npy(np.zeros((1, 160 * MB), np.int8)))
    yield "rows.npz", archive(npy(np.zeros((6_000_000, 1), np.int8)))
    yield "none.npz", archive(npy(np.zeros((10**12, 0), np.int8)))
    yield "damaged.npz", archive(sound).replace(b"PK\x05\x06", b"PK\x05\x07")


def test_arrays_of_token_ids_from_strangers(tmp_path: Path) -> None:
    failed = []
    for name, content in hostile_arrays():
        (tmp_path / name).write_bytes(content)
        tracemalloc.start()
        try:
            read_texts(tmp_path / name, tmp_path, VOCABULARY)
            failed.append(f"{name}: taken")
        except QuantmedicError:
            pass
        if tracemalloc.get_traced_memory()[1] > 64 * MB:
            failed.append(f"{name}: {tracemalloc.get_traced_memory()[1] >> 20} MB")
        tracemalloc.stop()
    assert not failed
    for name, content in (("misnamed.npz", npy(np.arange(40))), ("misnamed.npy", archive(npy(np.arange(40))))):
        (tmp_path / name).write_bytes(content)
        assert read_texts(tmp_path / name, tmp_path, VOCABULARY)[0].tolist() == list(range(40)), "read by what it holds"


def test_configurations_that_ask_for_more_than_the_weights_hold(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Each would take minutes, or gigabytes, to build; what is built is counted, not timed."""
    pytest.importorskip("transformers")
    from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
    from quantmedic.collectors.measure.checkpoints import TextRun

    tensors = made.language_model(layers=1)
    np.save(tmp_path / "ids.npy", np.arange(5, 45).reshape(2, 20))
    for changes in CONFIGS:
        folder = made.write_folder(tmp_path / "lm", tensors, CONFIG | changes, shards=1)
        with subtests.test(**changes), pytest.raises(ModelError):
            run_language_models((folder, folder), TextRun(tmp_path / "ids.npy"))
    folder = made.write_folder(
        tmp_path / "lm", tensors, CONFIG | {"num_labels": 2**31, "id2label": {"0": "a"}}, shards=1
    )
    language, _ = run_language_models((folder, folder), TextRun(tmp_path / "ids.npy"))
    assert language.texts == 2, "labels are no part of a language model"


def test_an_architecture_that_is_no_name_is_none() -> None:
    kinds = (["llama"], {"": {}}, 3, None)
    found = [
        architecture_of(config)
        for kind in kinds
        for config in ({"model_type": kind}, {"model_type": "llama", "text_config": {"model_type": kind}})
    ]
    assert found == [None, None, None, None, None, None, None, "llama"]


def bpe(**changes: Any) -> dict[str, Any]:
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "aab": 3}, "merges": ["a b", "a ab"], "unk_token": "a"}
    return {"version": "1.0", "added_tokens": [], "model": model} | changes


def write_tokenizer(folder: Path, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_tokenizers_that_panic_abort_and_take_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("QUANTMEDIC_MAX_TOKENIZER_BYTES", str(250 * MB))
    for name, content in {
        "no JSON": "{",
        "nested": "[" * 100_000,
        "no model": {"version": "1.0"},
        "merge of none": bpe(model=bpe()["model"] | {"merges": ["x y"]}),
        "no such unknown": bpe(model={"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "x"}),
        "unigram": bpe(model={"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 7}),
        "charsmap": bpe(normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
        "length": bpe(pre_tokenizer={"type": "FixedLength", "length": 0}),
        "grows": bpe(normalizer={"type": "Sequence", "normalizers": [_doubling()] * 40}),
    }.items():
        folder = write_tokenizer(tmp_path / "lm", content)
        with subtests.test(name), pytest.raises(QuantmedicError, match="the tokenizer cannot be used"):
            encode(folder, ["ab aab zb" * 50], 100)


def _doubling() -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def test_a_tokenizer_that_draws_gives_the_same_tokens_each_time(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "texts.txt").write_text("aabaab" * 50 + "\n\n" + "abaab" * 40)
    plain = write_tokenizer(tmp_path / "plain", bpe())
    drawing = write_tokenizer(tmp_path / "drawing", bpe(model=bpe()["model"] | {"dropout": 0.5}))
    notes: list[str] = []
    found = [read_texts(tmp_path / "texts.txt", lm, VOCABULARY, note=notes.append) for lm in (plain, drawing, drawing)]
    ids = [[text.tolist() for text in texts] for texts in found]
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 2
    assert len(notes) == 2 and "a dropout of 0.5" in notes[0]
