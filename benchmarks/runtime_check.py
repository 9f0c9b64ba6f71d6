"""What it costs to look whether the runtime computes something else than the file says, as a share of a diagnosis.

The first batch is run without graph optimizations beside the run as deployed and, where kernels are noisy, with one
setting after the other that may help (``runtime-changes-result``, R007 and R008). Processor time of that, and of the
search for the operator where the noise begins, is held against that of the whole ``quantmedic.diagnose``.
``--noisy`` treats kernels as noisy that are not, so that all settings are tried: the most that the check can take.

How to run, from the repository root; without pairs, of the demo, healthy and sick::

    python benchmarks/runtime_check.py
    python benchmarks/runtime_check.py --pair float.onnx int8.onnx representative.npz validation.npz
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quantmedic
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.from_onnx import kernel_noise, models
from quantmedic.trials import loss_budget

DEMO = Path(__file__).parents[1] / "quantmedic" / "demo"
#: Of the demo: pixels as they are stored, as its page says.
PIXELS = Preprocessing(scale=255.0, mean=[0.286], std=[0.353])


class Timed:
    """A function, and the processor seconds that its calls took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, *given: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return self._function(*given, **named)
        finally:
            self.seconds += time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", nargs=4, action="append", type=Path, metavar=("FLOAT", "QUANT", "REP", "VAL"))
    parser.add_argument("--noisy", action="store_true", help="try all settings, whatever the kernels do")
    asked = parser.parse_args()
    if asked.noisy:
        kernel_noise._WORTH_A_LOOK = -1.0
    print("pair                            proven  diagnose      check  search  share")
    for name, given, options in pairs_of(asked.pair):
        for prove in (False, True):
            print_share(f"{name:32s}{'yes' if prove else 'no':6s}", given, prove=prove, **options)


def pairs_of(given: list[list[Path]] | None) -> list[tuple[str, list[Path], dict[str, Any]]]:
    """Names, files and further options."""
    if given:
        return [(str(files[1])[-30:], files, {}) for files in given]
    data = [DEMO / "representative_healthy.npz", DEMO / "validation.npz"]
    quantized = [DEMO / f"{name}.onnx" for name in ("int8_healthy", "int8")]
    options = {"preprocessing": {"representative": PIXELS, "validation": PIXELS}}
    return [(path.stem, [DEMO / "float.onnx", path, *data], options) for path in quantized]


def print_share(label: str, files: list[Path], **options: Any) -> None:
    """Diagnose once and print the seconds."""
    check, search = Timed(kernel_noise.kernel_facts), Timed(loss_budget.find_departures)
    own = models.kernel_facts, loss_budget.find_departures
    models.kernel_facts, loss_budget.find_departures = check, search
    start = time.process_time()
    try:
        quantmedic.diagnose(*files[:2], representative=files[2], validation=files[3], threads=1, **options)
    finally:
        models.kernel_facts, loss_budget.find_departures = own
    whole = time.process_time() - start
    share = (check.seconds + search.seconds) / whole
    print(f"{label}{whole:9.2f} s{check.seconds * 1e3:8.0f} ms{search.seconds * 1e3:5.0f} ms{share:7.2%}", flush=True)


if __name__ == "__main__":
    main()
