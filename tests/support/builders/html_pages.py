"""Pages as a parser sees them."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "input", "br", "wbr", "hr"}
#: What loads or sends something.
ACTIVE = {"iframe", "object", "embed", "link", "img", "form", "base"}
Attributes = list[tuple[str, str | None]]


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that do not close."""

    def __init__(self, html: str):
        super().__init__()
        self.html = html
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open:
            self.text.append(data)

    def values(self, *names: str) -> list[str]:
        return [value for key, value in self.attributes if key in names]

    def assert_sound(self) -> None:
        """It loads nothing, its links lead somewhere, and its headings skip no level."""
        assert not ACTIVE & set(self.tags)
        assert not [key for key, _ in self.attributes if key.startswith("on")]
        assert not self.values("src", "srcset", "action", "xlink:href")
        ids = self.values("id")
        assert len(ids) == len(set(ids))
        inside = {href[1:] for href in self.values("href") if href.startswith("#") and not href.startswith("#layer=")}
        assert inside and inside <= set(ids)
        assert set(self.values("for", "aria-labelledby")) <= set(ids)
        headings = [int(tag[1]) for tag in self.tags if re.fullmatch(r"h[1-6]", tag)]
        assert headings[0] == 1 and headings.count(1) == 1 and all(b - a <= 1 for a, b in pairwise(headings))
        assert not [char for char in self.html if not char.isprintable() and char != "\n"]
