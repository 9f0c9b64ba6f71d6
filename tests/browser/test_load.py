"""What the page carries compressed comes back as it was, in the browser."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantmedic.reports.page.html import compress

pytestmark = pytest.mark.thorough


def texts(seed: int) -> list[str]:
    """Nothing, short ones, repeated ones, long distances, what does not compress, and all of Unicode."""
    draw = random.Random(seed)
    noise = "".join(draw.choices("0123456789abcdef", k=40_000))
    letters = [chr(draw.choice((draw.randrange(32, 0xD800), draw.randrange(0x10000, 0x10FFFF)))) for _ in range(900)]
    wide = "".join(letters)
    return ["", "a", "abcabcabc" * 3, "x" * 70_000, noise, noise[:300] + noise[300:33_000] + noise[:300], wide]


def test_texts_come_back(opened: Callable[..., Any], demo: Path) -> None:
    page = opened(demo)
    for text in texts(1):
        assert page.evaluate("decompress", compress(text)) == text


@pytest.mark.nightly
def test_a_damaged_program_leaves_a_page_to_read(
    subtests: pytest.Subtests, browser: Any, demo: Path, tmp_path: Path
) -> None:
    for damage in ["AAAA", "", "H4sIAAAAAAAA/0s", "!!"]:
        with subtests.test(damage=damage):
            text = (demo / "index.html").read_text(encoding="utf-8")
            before, mark, after = text.partition('id="program">')
            (tmp_path / "index.html").write_text(
                f"{before}{mark}{damage}{after[after.index('</script>') :]}", encoding="utf-8"
            )
            page = browser.new_page()
            page.goto((tmp_path / "index.html").as_uri())
            page.evaluate("running.catch(() => null)")
            assert page.locator("#layers table").first.is_visible() and page.locator(".cause").count()
            assert not page.locator("#theme").is_visible()
            page.close()
