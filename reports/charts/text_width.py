"""How wide text is in a drawing, and where it breaks: an estimate that holds for wide fonts, too."""

import re
import unicodedata

#: Shares of the font size, as DejaVu Sans has them, which is wider than most fonts.
_WIDTHS = {
    0.32: "ijlI.,:;'|! fr()[]/\\t",
    0.42: '-"{}*sz',
    0.64: "abcdeghknopquvxy0123456789_+=<>?$FJLEPSTYZcs",
    0.8: "ABCDGHKNOQRUVXw&#~^",
    1.0: "mMW%@…→",
}
_WIDTH = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
#: Parts of a text that stay together: words, and pieces of names with what separates them.
_PART = re.compile(r"\s+|[^\s/._:]*[/._:]+|[^\s/._:]+")


def text_width(text: str, size: float) -> float:
    """Width at a font size, rather too much than too little."""
    return size * sum(_WIDTH.get(letter) or _other_width(letter) for letter in text)


def text_lines(text: str, size: float, room: float, most: int) -> list[str]:
    """Lines that fit; what does not fit into so many ends in dots. None for no text."""
    lines: list[str] = []
    for part in _parts(text, size, room):
        if lines and text_width((lines[-1] + part).rstrip(), size) <= room:
            lines[-1] += part
        elif part.strip():
            lines.append(part)
    lines = [line.rstrip() for line in lines]
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while last and text_width(f"{last}…", size) > room:
        last = last[:-1]
    return [*lines[: most - 1], f"{last}…"]


def _parts(text: str, size: float, room: float) -> list[str]:
    """Parts that stay together; one that is wider than the room falls into its letters."""
    found: list[str] = []
    for part in _PART.findall(text):
        found += [part] if text_width(part, size) <= room else list(part)
    return found


def _other_width(letter: str) -> float:
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" or not letter.isascii() else 0.64
