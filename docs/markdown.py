"""Pages of the site as values, and what all of them have in common."""

import re
from dataclasses import dataclass

#: Where a sentence ends: not behind "e.g." or a number.
_SENTENCE = re.compile(r"(?<=[^.\d][.?])\s")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Page:
    """A page in Markdown.

    Attributes:
        text: The page, its title on the first line.
        section: The part of the site that it belongs to, as ``llms.txt`` lists it.
    """

    text: str
    section: str

    @property
    def title(self) -> str:
        return title_of(self.text)

    @property
    def summary(self) -> str:
        return first_sentence(self.text)


def title_of(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").strip()


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, without links."""
    for paragraph in text.split("\n\n"):
        said = " ".join(paragraph.split())
        if said and said[0] not in "#|`*<!-" and not said.startswith("Also called"):
            return _SENTENCE.split(_LINK.sub(r"\1", said))[0]
    return title_of(text)


def anchor_of(title: str) -> str:
    """Id of a heading, as the site writes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())
