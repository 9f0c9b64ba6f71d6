"""Mutations of JSON, YAML and TOML as trees: what comes out still parses."""

import copy
import json
import random
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml
from builders.toml_styles import Writer
from mutate_text import DEEP, LONG, LONG_NUMBER, STRINGS, any_value, mutate_bytes, mutate_lines, near_value, times


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree with every key or index of it."""
    for key in _keys(tree):
        yield tree, key
        yield from _places(tree[key])


def _keys(container: Any) -> list[Any]:
    if isinstance(container, dict):
        return list(container)
    return list(range(len(container))) if isinstance(container, list) else []


def mutate_tree(tree: Any, rng: random.Random) -> Any:
    """Values replaced, left out, renamed, doubled and moved to other places."""
    for _ in times(rng):
        known = list(_places(tree))
        if not known:
            return any_value(rng)
        parent, key = rng.choice(known)
        change = rng.randrange(10)
        if change == 0:
            del parent[key]
        elif change == 1 and isinstance(parent, dict):
            parent[rng.choice((f"{key}x", str(key)[:-1], *STRINGS))] = parent.pop(key)
        elif change == 2 and isinstance(parent, dict):
            parent[rng.choice(STRINGS)] = any_value(rng)
        elif change == 3 and isinstance(parent, list):
            parent[key:key] = [copy.deepcopy(parent[key]) for _ in range(rng.choice((1, 2, 200)))]
        elif change in (4, 5):
            other, place = rng.choice(known)
            parent[key] = copy.deepcopy(other[place]) if place in _keys(other) else None
        else:
            parent[key] = near_value(parent[key], rng)
    return tree


def json_bytes(tree: Any) -> bytes:
    text = json.dumps(tree).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000)
    return text.replace(f'"{LONG}"', LONG_NUMBER).encode()


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return mutate_bytes(content, rng)
    return json_bytes(mutate_tree(json.loads(content), rng))


def mutate_toml(content: bytes, rng: random.Random) -> bytes:
    """The tree of a file, in any style; rarely its lines."""
    if rng.random() < 0.8:
        tree = mutate_tree(tomllib.loads(content.decode()), rng)
        try:
            written = Writer(rng.randrange(99)).write(tree).replace(f'"{LONG}"', LONG_NUMBER)
            tomllib.loads(written)
            return written.encode()
        except (TypeError, ValueError, AttributeError, RecursionError):  # TOML has no null
            pass
    return mutate_lines(content, rng)


def mutate_yaml(content: bytes, rng: random.Random) -> bytes:
    """The tree of a file or its lines; rarely what only YAML has."""
    chance = rng.random()
    if chance < 0.1:
        return rng.choice(_ONLY_YAML) + (content if chance < 0.05 else b"")
    if chance < 0.5:
        return mutate_lines(content, rng)
    try:
        return json_bytes(mutate_tree(yaml.safe_load(content), rng))
    except (TypeError, yaml.YAMLError):  # dates, tags
        return mutate_lines(content, rng)


def _doubled(first: str, line: str, count: int) -> bytes:
    """Lines that each hold the one before twice or more."""
    return "\n".join([first, *(line.format(i=i, j=i - 1) for i in range(1, count)), ""]).encode()


_ONLY_YAML = (
    _doubled("a0: &a0 {x: 1}", "a{i}: &a{i} {{<<: [*a{j}, *a{j}]}}", 30),
    _doubled("b0: &b0 [ha]", "b{i}: &b{i} [*b{j}, *b{j}, *b{j}, *b{j}, *b{j}, *b{j}]", 12),
    *(b"d: " + b"[" * 20_000 + b"\n", b"? " * 3000 + b"\n", b"- " * 3000 + b"x\n", b"a: &a [*a]\n"),
    *(b"!!python/object/apply:os.system [touch owned]\n", b"x: !!binary ab=c\n", b"? [1, {a: 2}]\n: 3\n"),
    *(b"t: 2001-99-99\n", b"t: 1:99:99:1e5\n", b"y: 0o9\n", b"a: 1\n---\nb: 2\n", b"\xff\xfea\x00", b"1: 2\nnull: 3\n"),
)
