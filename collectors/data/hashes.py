"""Hashes of files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path


def sha256_of(files: Sequence[Path]) -> str:
    """Hash of all bytes of several files, one behind the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
