"""Remedies as text that can be copied: the names of this model's layers filled in."""

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from quantmedic.engine.contract.advised_remedies import Advice
from quantmedic.engine.errors import RuleError
from quantmedic.engine.rules.remedies import EACH_FIELDS, NAME_FIELDS, WEIGHT_FILES, Snippet
from quantmedic.engine.rules.toolchain_options import (
    FIELD,
    WIDTH,
    Code,
    Form,
    Options,
    fill,
    is_code,
    mark_changes,
    setting_lines,
    with_helpers,
    with_imports,
    without_comments,
    write,
    write_excerpt,
)
from quantmedic.engine.text import inert, literal, quote

INDENT = "    "


def render_snippet(code: str, fields: Mapping[str, object], origin: str) -> str:
    """Fill the fields of a snippet with names and values; ``{{`` and ``}}`` are braces.

    Any other brace stays as it is, so that a snippet of a user's rule cannot read attributes.

    Args:
        code: Text of the snippet.
        fields: Lists of names, numbers, or tables of numbers by name, as given by ``Advice.fields``.
        origin: Rule and remedy, for the error.

    Raises:
        RuleError: The snippet asks for names, and there are none.
    """

    def fill(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0][0]
        if match[1] in NAME_FIELDS:
            return literal(_require_names(match[1], fields, origin))
        value = fields.get(match[1])
        if isinstance(value, Code):
            return value
        return match[0] if value is None else literal(value)

    lines = [each for line in code.strip("\n").splitlines() for each in _expand_line(line, fields, origin)]
    return FIELD.sub(fill, "\n".join(lines))


def _expand_line(line: str, fields: Mapping[str, object], origin: str) -> Iterator[str]:
    """A line that asks for one name at a time stands once for each; what it says beside that is filled in later."""
    names = {field: kind for field, kind in EACH_FIELDS.items() if field in FIELD.findall(line)}
    if not names:
        yield line
        return
    ((field, kind),) = names.items()
    for each in _require_names(kind, fields, origin):
        literal_braces = quote(each).replace("{", "{{").replace("}", "}}")
        yield line.replace(f"{{{field}}}", literal_braces)


def _require_names(field: str, fields: Mapping[str, object], origin: str) -> tuple[str, ...]:
    """The names of a field, of which there must be one."""
    names = fields.get(field)
    if isinstance(names, tuple | list) and names:
        return tuple(names)
    raise RuleError(
        f"a snippet names {NAME_FIELDS[field]}, and there are none",
        where=origin,
        help="advise this remedy only for causes that name layers or tensors",
    )


def filled_options(snippet: Snippet, fields: Mapping[str, object], origin: str) -> dict[str, Options]:
    """Options of a snippet by the form that takes them, with names and values.

    Raises:
        RuleError: They ask for names, and there are none.
    """
    for field in snippet.fields & (NAME_FIELDS.keys() | EACH_FIELDS.keys()):
        _require_names(EACH_FIELDS.get(field, field), fields, origin)
    given = {**fields, **{each: fields.get(field) for each, field in EACH_FIELDS.items()}}
    return {form: fill(options, given) for form, options in snippet.options.items()}


def render_snippets(advice: Advice, rules: Iterable[str]) -> list[str]:
    """The text of every snippet of an advice, in order."""
    origin = _origin(advice, rules)
    return [_snippet_text(snippet, advice, origin) for snippet in advice.snippets]


def _origin(advice: Advice, rules: Iterable[str]) -> str:
    """Who asks for it, for errors."""
    return f"{', '.join(rules)}: {advice.id}"


def changed_settings(snippet: Snippet, advice: Advice, rules: Iterable[str]) -> dict[str, list[str]]:
    """Lines that set the options of a snippet, by the call or file that takes them; none of its own code.

    Raises:
        RuleError: They ask for names, and there are none.
    """
    filled = filled_options(snippet, advice.fields, _origin(advice, rules))
    lines = {name: setting_lines(snippet.forms[name], options) for name, options in filled.items()}
    return {name: found for name, found in lines.items() if found}


def is_whole(snippet: Snippet, advice: Advice) -> bool:
    """The snippet is written with all settings in force, and not as the change alone."""
    return bool(snippet.options) and all(advice.in_force.get(form) for form in snippet.options)


def with_settings(name: str, form: Form, options: Options, kept: Options) -> str:
    """A call with the settings in force, and the options of remedies marked where they change one."""
    before: Options = {**dict(enumerate(form.positional)), **kept}
    # What is stated wherever nothing else is said stands again where the remedy sets another in the place of something.
    joined = form.join(options, before, form.defaults)
    return write(name, form, mark_changes(joined, before, {**form.reasons, **_left_out(form, joined, before)}))


def _left_out(form: Form, options: Options, before: Options) -> dict[str, str]:
    """Why an option stands there: it is in the place of others, which are in force and do not stand beside it."""
    gone = {key: [name for name in form.instead.get(str(key), ()) if name in before] for key in options}
    return {str(key): f"in the place of {', '.join(names)}" for key, names in gone.items() if names}


def _snippet_text(snippet: Snippet, advice: Advice, origin: str) -> str:
    code = [render_snippet(snippet.code, advice.fields, origin)] if snippet.code else []
    filled = filled_options(snippet, advice.fields, origin)
    texts = []
    for name, options in filled.items():
        form = snippet.forms[name]
        kept = advice.in_force.get(name)
        text = with_settings(name, form, options, kept) if kept else write_excerpt(name, form, options)
        texts.append(stand_within(text, snippet))
        texts += lines_behind([snippet], form, options)
    if set(snippet.frameworks) & {*WEIGHT_FILES}:
        return with_words(with_helpers("\n".join([*code, *texts]), snippet.tool.helpers), snippet)
    if not is_whole(snippet, advice):
        return with_helpers("\n".join([*code, *texts]), snippet.tool.helpers)
    whole = with_helpers("\n".join([*code, *texts]), {**snippet.tool.helpers, **advice.helpers})
    # A file that takes options is no Python.
    return with_imports(whole, advice.imports) if _is_python(snippet) else whole


def with_words(code: str, snippet: Snippet) -> str:
    """A text behind its imports, and behind comments that say which names are the user's own."""
    used = own_names(code, snippet.tool.given)
    lines = [line for name, what in used.items() for line in as_comment(f"{name}: {what}")]
    return with_imports("\n".join([*lines, *([""] if lines else []), code.strip("\n")]), snippet.tool.imports)


def as_comment(text: str) -> list[str]:
    """Lines of a comment, none of them longer than a line of code."""
    return textwrap.wrap(inert(text), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def own_names(code: str, given: Mapping[str, str]) -> dict[str, str]:
    """What Python code uses of the names that are the user's own, and what they stand for.

    Names of arguments are none, nor are those that the code gives values itself.
    """
    try:
        tree = ast.parse(code)
    except SyntaxError:
        text = without_comments(code)
        return {n: what for n, what in given.items() if re.search(rf"(?<![\w\"./]){n}(?![\w\"])", text)}
    names = sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.Name)),
        # what is assigned is computed before
        key=lambda node: (node.lineno, isinstance(node.ctx, ast.Store), node.col_offset),
    )
    first = {node.id: node.ctx for node in reversed(names)}
    return {name: what for name, what in given.items() if isinstance(first.get(name), ast.Load)}


def _is_python(snippet: Snippet) -> bool:
    return all(snippet.forms[name].language == "python" for name in snippet.options)


def stand_within(text: str, snippet: Snippet) -> str:
    """A call inside the statement that the snippet wants around it."""
    return f"{snippet.within}\n{textwrap.indent(text, INDENT)}" if snippet.within else text


def lines_behind(snippets: Iterable[Snippet], form: Form, options: Options) -> list[str]:
    """What stands behind a call with these options; a field with a number is an argument of the call."""
    places = dict(enumerate(form.positional)) | {key: value for key, value in options.items() if isinstance(key, int)}
    fields = {str(place): Code(value[1:]) if is_code(value) else value for place, value in places.items()}
    # Those of a loop first: they make one model of several.
    ordered = sorted(snippets, key=lambda snippet: not snippet.within)
    return [*dict.fromkeys(render_snippet(each.after, fields, "") for each in ordered if each.after)]
