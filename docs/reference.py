"""The reference of the Python API, from its docstrings and annotations."""

import inspect
import re
from collections.abc import Iterator

import quantmedic
from docs.markdown import Page

#: Headings of a docstring in Google's style, as sections of the page.
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Attributes|Examples?):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (?P<name>\*{0,2}[\w., ]+?)(?: \(.*?\))?: (?P<text>.+(?:\n(?: {5,}.*|$))*)", re.MULTILINE)
_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z_a-z])")
#: A type that is known by its name alone while the module is loaded.
_LATER = re.compile(r"ForwardRef\('(?P<name>[^']*)'[^)]*\)")
_TITLES = {"Args": "Arguments"}


def reference_pages() -> dict[str, Page]:
    """One page for each public name, and a list of all."""
    names = [name for name in quantmedic.__all__ if not name.startswith("_")]
    pages = {f"api/{name}.md": Page(_page_of(name), "Python API") for name in names}
    rows = [f"| [`{page.title}`]({path.removeprefix('api/')}) | {page.summary} |" for path, page in pages.items()]
    head = "# Python API\n\nWhat `import quantmedic` offers; the commands call the same functions."
    table = "\n".join(["| name | what it does |", "|---|---|", *rows])
    more = "How they are used: [in Python](../manual/python.md)."
    return {"api/index.md": Page(f"{head}\n\n{table}\n\n{more}\n", "Python API"), **pages}


def _page_of(name: str) -> str:
    found = getattr(quantmedic, name)
    said = inspect.getdoc(found) or ""
    first, *sections = _SECTION.split(said)
    parts = [f"# {name}", _as_markdown(first.strip()), f"```python\n{_signature(name, found)}\n```"]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        parts += [f"## {_TITLES.get(title, title)}", "\n".join(_entries(title, text.strip("\n")))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _signature(name: str, found: object) -> str:
    """The signature with one parameter in each line, types without the modules they come from."""
    if not callable(found):
        return name
    known = inspect.signature(found)
    lines = [f"    {_shown(each)}," for each in known.parameters.values()]
    star = next((at for at, each in enumerate(known.parameters.values()) if each.kind is each.KEYWORD_ONLY), None)
    if star is not None:
        lines.insert(star, "    *,")
    back = known.return_annotation
    result = "" if back is known.empty else f" -> {_MODULES.sub('', inspect.formatannotation(back))}"
    return "\n".join([f"quantmedic.{name}(", *lines, f"){result}"])


def _shown(parameter: inspect.Parameter) -> str:
    """A parameter without modules; of options that are passed on only the name, for their own page lists them."""
    plain = parameter.kind is parameter.VAR_KEYWORD
    said = str(parameter.replace(annotation=parameter.empty) if plain else parameter)
    return _MODULES.sub("", _LATER.sub(r"\g<name>", said)).replace("NoneType", "None")


def _entries(title: str, text: str) -> Iterator[str]:
    """Arguments and errors as a list; what is no list stays as it is."""
    entries = list(_ENTRY.finditer(text))
    if title in ("Returns", "Yields", "Example", "Examples") or not entries:
        yield _as_markdown(inspect.cleandoc(text))
        return
    for entry in entries:
        yield f"* `{entry['name']}`: {_as_markdown(' '.join(entry['text'].split()))}"


def _as_markdown(text: str) -> str:
    return text.replace("``", "`")
