"""How large the report's page is and how soon it answers, in headless Chromium on made-up cases.

    python benchmarks/page.py                     53, 1000 and 10 000 layers
    python benchmarks/page.py --layers 1000 --rounds 5

Needs chromium on PATH and playwright. Times are medians over fresh pages: first view is the first paint, with the
causes in it; ready is when the program answers; the others run from a click or a key to the frame that shows the
result. In brackets stands the processor time of the page's thread, which other work on the machine leaves as it is; of
ready it is that of everything until then. The longest task is the longest time for which the page did not answer while
all sections were drawn. Writing is every format, against loading the case; the first size is written by a process that
has written nothing yet.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layers
from playwright.sync_api import sync_playwright

import quantmedic
from quantmedic.api.report import FORMATS
from quantmedic.api.rulebase import load_manuals
from quantmedic.reports.write import write_report

SIZES = (53, 1000, 10_000)
#: Channels of the largest case: as many as fit into memory.
FEW_CHANNELS = 8
LIMITS_KB = {53: 500, 1000: 3000, 10_000: 12_000}
#: Runs an action and waits for the frame after it.
TIMED = """async (action) => {
  const start = performance.now();
  await eval(`(async () => { ${action} })()`);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - start;
}"""
WATCH = """window.longest = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask", buffered: true });
const look = () => (typeof reveal === "function" ? (window.ready = performance.now()) : setTimeout(look, 1));
look();"""
ACTIONS = {
    "draw the graphs": "reveal('charts')",
    "draw the table": "reveal('table')",
    "draw the model": "reveal('graph')",
    "sort": "document.querySelectorAll('[data-section=table] thead button')[4].click()",
    "sort back": "document.querySelectorAll('[data-section=table] thead button')[1].click()",
    "filter": "const box = document.querySelector('[data-section=table] input[type=search]');"
    " box.value = 'conv'; box.dispatchEvent(new Event('input', {bubbles: true}))",
    "open a layer": "select(20)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        columns = [measure(size, Path(folder), browser, arguments.rounds) for size in arguments.layers]
        browser.close()
    print("| | " + " | ".join(f"{size} layers" for size in arguments.layers) + " |")
    print("|---|" + "--:|" * len(columns))
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(column[row] for column in columns) + " |")


def measure(size: int, folder: Path, browser: Any, rounds: int) -> dict[str, str]:
    """One column of the table."""
    path, report = folder / f"{size}.case", folder / f"report-{size}"
    quantmedic.save_case(layers.build(size, FEW_CHANNELS if size > SIZES[1] else None), path)
    load, case = timed(lambda: quantmedic.load_case(path))
    opened = quantmedic.inspect(case)
    diagnosis = quantmedic.judge(opened)
    manuals = load_manuals(opened.base)
    write, _ = timed(lambda: write_report(diagnosis, manuals, report, FORMATS, opened))
    save, _ = timed(lambda: quantmedic.save_case(case, path))
    found = [view(report / "index.html", browser) for _ in range(rounds)]
    kilobytes = (report / "index.html").stat().st_size / 1000
    return {
        "page (kB; limit)": f"{kilobytes:.0f} ({LIMITS_KB.get(size, '')})",
        "load the case, write all formats, write the case (s)": f"{load:.2f}, {write:.2f}, {save:.2f}",
        **{f"{row} (ms)": shown([times[row] for times in found]) for row in found[0]},
    }


def shown(times: list[tuple[float, float | None]]) -> str:
    """Medians of times on the clock and of the processor."""
    clock = statistics.median(each for each, _ in times)
    taken = [each for _, each in times if each is not None]
    return f"{clock:.0f} ({statistics.median(taken):.0f})" if taken else f"{clock:.0f}"


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def view(path: Path, browser: Any) -> dict[str, tuple[float, float | None]]:
    """Milliseconds of one visit, on the clock and of the processor."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, bypass_csp=True)
    page = context.new_page()
    page.add_init_script(WATCH)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_function("performance.getEntriesByType('paint').length")
    first = page.evaluate("performance.getEntriesByType('paint')[0].startTime")
    ready = page.wait_for_function("window.ready").json_value()
    found: dict[str, tuple[float, float | None]] = {
        "first view": (first, None),
        "ready": (ready, processor_ms(session)),
    }
    for name, action in ACTIONS.items():
        before = processor_ms(session)
        found[name] = page.evaluate(TIMED, action), processor_ms(session) - before
    page.wait_for_timeout(1500)
    found["longest task"] = page.evaluate("window.longest"), None
    context.close()
    return found


def processor_ms(session: Any) -> float:
    """What the page's thread has taken so far."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * float(metrics["TaskDuration"])


if __name__ == "__main__":
    main()
