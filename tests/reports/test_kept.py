"""Templates and pages of the manual are made once, and again where what they are made of is another."""

import sys
from pathlib import Path

import jinja2
import pytest

from quantmedic.reports.kept import KeptTemplates, kept_pages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files tell nothing there")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where things are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "quantmedic"


class Counted(jinja2.Environment):
    """Counts what it compiles."""

    compiled = 0

    def compile(self, *args: object, **options: object) -> object:
        self.compiled += 1
        return super().compile(*args, **options)  # type: ignore[call-overload]


def render(text: str) -> tuple[str, int]:
    """What a fresh environment makes of a template, and how many it compiled for that."""
    environment = Counted(loader=jinja2.DictLoader({"a": text}), autoescape=True, bytecode_cache=KeptTemplates())
    return environment.get_template("a").render(x="<"), environment.compiled


def test_a_template_is_compiled_once(folder: Path) -> None:
    assert render("1 {{ x }}") == ("1 &lt;", 1)
    assert render("1 {{ x }}") == ("1 &lt;", 0)
    assert render("2 {{ x }}") == ("2 &lt;", 1)
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o700]


def test_a_damaged_template_is_compiled_again(subtests: pytest.Subtests, folder: Path) -> None:
    for keep in [0, 10, -1]:
        with subtests.test(keep=keep):
            render("{{ x }}")
            (path,) = (folder / "templates").iterdir()
            path.write_bytes(path.read_bytes()[:keep])
            assert render("{{ x }}") == ("&lt;", 1)
            assert render("{{ x }}") == ("&lt;", 0)


def test_each_page_is_rendered_once(folder: Path) -> None:
    made = []

    def pages(*texts: str) -> dict[str, str]:
        def render(code: str, text: str) -> str:
            made.append(text)
            return f"<p>{text}</p>"

        return dict(kept_pages({f"W00{number}": text for number, text in enumerate(texts)}, render))

    assert pages("one") == pages("one") == {"W000": "<p>one</p>"}
    assert pages("one", "two") == {"W000": "<p>one</p>", "W001": "<p>two</p>"}
    assert made == ["one", "two"]
    (folder / "manual" / "pages.json").write_text('{"made_by": ', encoding="utf-8")
    assert pages("one") == {"W000": "<p>one</p>"}
    assert made == ["one", "two", "one"]


def test_nothing_is_kept_where_others_may_write(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert [render("{{ x }}") for _ in range(2)] == [("&lt;", 1)] * 2
    made: list[int] = []
    for _ in range(2):
        kept_pages({"W001": ""}, lambda *page: made.append(1) or "")
    assert made == [1, 1]
    assert [path for path in folder.rglob("*") if path.is_file()] == []
