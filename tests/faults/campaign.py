"""Strike commands at random moments, as often as wanted, and log what does not hold then.

    python tests/faults/campaign.py --kills 1000 --seed 1 --log faults.jsonl

A blow is drawn from the seed and its number, so that a log that exists is gone on with. The exit code is 1 where an
invariant was broken; the folder of such a blow is kept beside the log.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

for library in ("OPENBLAS", "OMP", "MKL"):  # a process with threads must not be forked
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
os.environ["QUANTMEDIC_NO_PROVE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from faults.strike import copy_back  # noqa: E402
from faults.trial import close_ground, open_ground, row_text  # noqa: E402


def main() -> int:
    """Strike, log, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="Blows in all. [1000]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--log", type=Path, required=True, help="One line for each blow; gone on with if it exists.")
    asked = parser.parse_args()
    rows = [json.loads(line) for line in asked.log.read_text().splitlines()] if asked.log.exists() else []
    ground = open_ground()
    try:
        with asked.log.open("a") as log:
            for number in range(len(rows), asked.kills):
                row = {"number": number} | ground.strike(asked.seed * 1_000_000 + number)
                rows.append(row)
                print(row_text(row), file=log, flush=True)
                if row["wrong"]:
                    print(f"blow {number}: {row}", flush=True)
                    copy_back(ground.folder / "struck", asked.log.parent / f"broken-{number}")
    finally:
        close_ground(ground)
    print(summary(rows))
    return int(any(row["wrong"] for row in rows))


def summary(rows: list[dict[str, object]]) -> str:
    """Figures of all blows."""
    met = [row for row in rows if row["struck"]]
    lines = [
        f"{len(rows)} blows, {len(met)} while the command ran: "
        + ", ".join(f"{count} {blow}" for blow, count in Counter(str(row["blow"]) for row in met).most_common()),
        "of " + ", ".join(f"{count} {name}" for name, count in Counter(str(row["scene"]) for row in met).most_common()),
        f"{sum(bool(row['wrong']) for row in rows)} left an invalid state",
        f"{sum(bool(row['resumed']) for row in rows)} were gone on with",
        f"{sum(bool(row['waiting']) for row in rows)} left files of a report for the next command to move",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
