"""The picture of README.md: the first screen of the demo's report, taken by a browser.

``python docs/picture.py`` runs the demo and writes ``docs/report.png``; ``--report FOLDER`` takes a finished report. It
needs the extra ``test`` and ``chromium`` on the PATH.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "report.png"
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="folder of a report; without it the demo is run")
    given = parser.parse_args().report
    with tempfile.TemporaryDirectory() as folder:
        if given is None:
            subprocess.run([sys.executable, "-m", "quantmedic", "demo", "-o", folder], check=True)
        take_picture(given or Path(folder), PICTURE)


if __name__ == "__main__":
    main()
