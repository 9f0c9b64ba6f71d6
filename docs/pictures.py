"""The pictures of README.md and of the tutorial: first screens of reports, taken by a browser.

``python -m docs.pictures`` runs the commands of the tutorial, and writes ``docs/report.png`` (the demo) and
``docs/healed.png`` (the same network healed). It needs the extra ``test`` and ``chromium`` on the PATH.
"""

import io
import shutil
import tempfile
from pathlib import Path

from docs.markdown import Page
from docs.tutorial import run_tutorial

DOCS = Path(__file__).parent
#: Reports that the tutorial writes and shows.
REPORTS = ("report", "healed")
#: As wide as a page of a code host shows it at full size, and as high as the summary.
SIZE = (1200, 690)
#: Of the palette: more than the page has, but for the edges of letters.
COLOURS = 128


def take_picture(report: Path, picture: Path) -> None:
    """The first screen of a report, as PNG with a palette, which is a third as large."""
    from PIL import Image  # both are of the extra `test`
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("error: chromium is not on the PATH; install it, then run this again")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        width, height = SIZE
        page = browser.new_context(viewport={"width": width, "height": height}, offline=True).new_page()
        page.goto((report / "index.html").resolve().as_uri())
        page.evaluate("running")
        page.wait_for_timeout(500)  # figures are drawn after the program has begun
        shot = page.screenshot()
        browser.close()
    colours = Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    colours.save(picture, optimize=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(folder, "tutorial")
        run_tutorial(Page((DOCS / "pages/tutorial.md").read_text(encoding="utf-8"), "Start"), reports)
        for name in REPORTS:
            take_picture(reports / name, DOCS / f"{name}.png")


if __name__ == "__main__":
    main()
