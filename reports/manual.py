"""Manual pages: Markdown to HTML that cannot run anything, and the glossary of facts."""

import html
import re
import xml.etree.ElementTree as etree
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.reports.text import field_info, printable

EXTENSIONS = ("tables", "fenced_code", "footnotes", "def_list", "abbr", "sane_lists")
SAFE_SCHEMES = ("", "http", "https", "mailto")
UNREADABLE = "unreadable"
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


def to_html(text: str, *, anchor: str = "", demote: int = 0, link: Callable[[str], str] = lambda target: target) -> str:
    """Render a page; raw HTML is shown as text, and only harmless links stay links.

    Args:
        text: Page in Markdown.
        anchor: Prefix of the ids of headings and footnotes, to embed several pages in one document.
        demote: Levels by which headings are lowered.
        link: Changes the targets of relative links.
    """
    safety = _Safety(anchor, demote, link)
    converter = markdown.Markdown(
        extensions=[*EXTENSIONS, safety],
        output_format="html",
    )
    html: str = converter.convert(printable(text))
    # A block that scrolls must be within reach of the keyboard. Text of the page holds no "<" that is not escaped.
    return html.replace("<pre>", '<pre tabindex="0">')


def glossary_page(rules: RuleBase) -> str:
    """All facts with path, description, unit and what it takes to know it, as a page of the manual."""
    lines = [
        "# Glossary of facts",
        "",
        "Rules read these facts. A fact that is not known is absent, never 0, and what asks for it is not judged; the "
        "last column says what it takes. Wherever a path holds `data.`, the same facts exist "
        "under `representative.` and `validation.` for one data set alone; `data` is the validation set where it was "
        "given, else the representative set. Every scope may also read the facts of the model, as `model.` followed by "
        "their path.",
    ]
    for scope, cls in SCOPES.items():
        lines += ["", f"## {scope}", "", (cls.__doc__ or "").strip().splitlines()[0].replace("``", "`"), ""]
        lines += ["| fact | what it is | unit | if it is missing |", "|---|---|---|---|", *_glossary_rows(scope, rules)]
    return "\n".join(lines) + "\n"


def sibling(target: str, suffix: str = ".html") -> str:
    """A link from page to page, with the suffix of the format at hand."""
    path, mark, fragment = target.partition("#")
    return path.removesuffix(".md") + suffix + mark + fragment if path.endswith(".md") else target


def slug(text: str) -> str:
    """Heading as an id."""
    return re.sub(r"[^\w]+", "-", text.lower()).strip("-")


def _glossary_rows(scope: str, rules: RuleBase) -> Iterable[str]:
    for path, info in fact_paths(scope).items():  # type: ignore[arg-type]
        if path.startswith("model.") or re.search(r"(^|\.)(representative|validation)\.", path):
            continue
        fact = field_info(info)
        cells = (fact.description, fact.unit or "", rules.hint(path) or "")
        texts = (cell.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;") for cell in cells)
        yield f"| `{path}` | {' | '.join(texts)} |"


class _Safety(Extension):  # type: ignore[misc]  # python-markdown has no types
    """Shows raw HTML as text and cleans what the parser built."""

    def __init__(self, anchor: str, demote: int, link: Callable[[str], str]):
        super().__init__()
        self.cleaner = (anchor, demote, link)

    def extendMarkdown(self, md: markdown.Markdown) -> None:
        md.preprocessors.deregister("html_block")
        md.inlinePatterns.deregister("html")
        md.treeprocessors.register(_Clean(md, *self.cleaner), "clean", -10)


class _Clean(Treeprocessor):  # type: ignore[misc]  # python-markdown has no types
    """Runs last, on the finished tree: ids, heading levels, links and images."""

    def __init__(self, md: markdown.Markdown, anchor: str, demote: int, link: Callable[[str], str]):
        super().__init__(md)
        self.anchor, self.demote, self.link = anchor, demote, link

    def run(self, root: etree.Element) -> None:
        for element in root.iter():
            if element.tag in HEADINGS:
                self._heading(element)
            elif element.tag == "a":
                self._link(element)
            elif element.tag == "img":
                self._image(element)
            elif element.tag == "th":
                element.set("scope", "col")
            if self.anchor and "id" in element.attrib and element.tag not in HEADINGS:
                element.set("id", f"{self.anchor}-{element.get('id')}")

    def _heading(self, element: etree.Element) -> None:
        title = slug("".join(element.itertext()))
        element.set("id", f"{self.anchor}-{title}" if self.anchor else title)
        element.tag = HEADINGS[min(HEADINGS.index(element.tag) + self.demote, len(HEADINGS) - 1)]

    def _link(self, element: etree.Element) -> None:
        target = element.get("href", "")
        scheme = _scheme(target)
        if scheme not in SAFE_SCHEMES:
            del element.attrib["href"]
        elif scheme:
            element.set("rel", "noopener noreferrer")
        elif target.startswith("#"):
            element.set("href", f"#{self.anchor}-{target[1:]}" if self.anchor else target)
        else:
            element.set("href", self.link(target))

    def _image(self, element: etree.Element) -> None:
        """A picture from elsewhere would be a request: its description stands for it."""
        element.tag, element.text = "span", element.get("alt", "")
        element.attrib.clear()


def _scheme(target: str) -> str:
    """Scheme of a link as a browser may come to see it, its character references resolved however deep."""
    while (plain := html.unescape(target)) != target:
        target = plain
    compact = re.sub(r"[\x00-\x20]", "", target)
    try:
        scheme = urlsplit(compact).scheme.lower()
    except ValueError:
        return UNREADABLE
    return UNREADABLE if not scheme and ":" in re.split(r"[/?#]", compact)[0] else scheme
