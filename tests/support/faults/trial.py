"""One blow: drawn from a seed, carried out, and judged."""

import json
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from faults.invariants import DONE, UNFINISHED, broken, case_content, is_mixed, is_of_others, report_files
from faults.scenes import SCENES, Scene, begin, prepare
from faults.strike import SIGNALS, start

#: How often each scene and each blow is drawn.
WEIGHTS = {
    "collect": 24,
    "collect fast": 10,
    "diagnose": 22,
    "language model": 6,
    "report": 22,
    "check": 10,
    "prove": 3,
    "fix": 3,
}
BLOWS = {"kill": 60, "terminate": 14, "interrupt": 14, "full": 6, "vanish": 3, "short": 3, "twice": 4}


@dataclass
class Known:
    """What a scene leaves behind when nothing happens to it, and how long it takes."""

    seconds: float
    old: dict[str, bytes]
    new: dict[str, bytes]
    case: dict[str, bytes]


@dataclass
class Ground:
    """A folder in which scenes are struck, one after the other."""

    folder: Path
    known: dict[str, Known] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make what the scenes read."""
        prepare(self.shared)

    @property
    def shared(self) -> Path:
        """What all scenes read."""
        return self.folder / "shared"

    def know(self, name: str) -> Known:
        """What comes of a scene without a blow, which is run twice: the first is slower."""
        if name not in self.known:
            scene, place = SCENES[name], self.folder / "whole"
            for _ in range(2):
                begin(scene, self.shared, place)
                old = report_files(place / scene.report) if scene.report and (place / scene.report).exists() else {}
                ended = start(scene.words, place).finish()
                assert ended.status in DONE, ended
            new = report_files(place / scene.report) if scene.report else {}
            case = case_content(place / scene.case) if scene.case else {}
            self.known[name] = Known(ended.seconds, old, new, case)
        return self.known[name]

    def strike(self, seed: int) -> dict[str, object]:
        """Carry one blow out; the row names what does not hold then, of which nothing is expected."""
        rng = random.Random(seed)
        name = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        blow = rng.choices(list(BLOWS), list(BLOWS.values()))[0]
        return self.strike_with(name, blow, rng)

    def strike_with(self, name: str, blow: str, rng: random.Random) -> dict[str, object]:
        """The same with the scene and the blow given."""
        scene, known, place = SCENES[name], self.know(name), self.folder / "struck"
        # What it says must fit.
        share, most = rng.random(), int(10 ** rng.uniform(4.3, 5.7))
        begin(scene, self.shared, place)
        if blow == "twice":
            return self._strike_twice(name, share)
        running = start(scene.words, place, most=most if blow == "full" else None)
        ended = running.finish() if blow == "full" else running.finish(blow=blow, after=share * known.seconds)
        report = place / scene.report if scene.report else None
        waiting = report is not None and is_mixed(report)
        wrong = broken(scene, place, ended, blow, known.old, known.new)
        row: dict[str, object] = {"scene": name, "blow": blow, "share": round(share, 4), "status": ended.status}
        row |= {"struck": ended.struck or blow == "full", "waiting": waiting, "resumed": False}
        if not wrong and blow in SIGNALS and scene.goes_on is not None:
            row["resumed"] = True
            wrong += self._resume(scene, place, known)
        return row | {"wrong": wrong}

    def _resume(self, scene: Scene, place: Path, known: Known) -> list[str]:
        """Goes on, and says to the bit what one run says; scraps of the killed one are gone then."""
        assert scene.case is not None and scene.goes_on is not None
        (place / "said").unlink()
        ended = start((*scene.words, *scene.goes_on), place).finish()
        if ended.status != 0:
            return [f"going on ends with {ended.status}: {ended.said[-300:]}"]
        found = case_content(place / scene.case)
        differing = sorted(name for name in {*found, *known.case} if found.get(name) != known.case.get(name))
        wrong = [f"going on gives another case: {differing[:3]}"] if differing else []
        if scene.report is not None and report_files(place / scene.report) != known.new:
            wrong.append("going on gives another report")
        scraps = [*place.joinpath("out").rglob(".quantmedic-*"), *place.joinpath("out").rglob(f"*{UNFINISHED}")]
        scraps += place.joinpath("tmp").iterdir()
        scraps = [path for path in scraps if not is_of_others(path)]
        return wrong + [f"the scrap {path.relative_to(place)} outlives the next run" for path in scraps]

    def _strike_twice(self, name: str, share: float) -> dict[str, object]:
        """A second one begins to write to the same place."""
        scene, known, place = SCENES[name], self.know(name), self.folder / "struck"
        first = start(scene.words, place)
        first_status = first.wait(share * known.seconds)
        second = start(scene.words, place)
        ended = [second.finish(), *([] if first_status is not None else [first.finish()])]
        wrong = [f"exit status {each.status}: {each.said[-300:]}" for each in ended if each.status not in DONE]
        if scene.report is not None and scene.steady and report_files(place / scene.report) != known.new:
            wrong.append("the report of two writers is not that of one")
        if scene.case is not None and scene.steady and case_content(place / scene.case) != known.case:
            wrong.append("the case of two writers is not that of one")
        row = {"scene": name, "blow": "twice", "share": round(share, 4), "status": ended[0].status}
        return row | {"struck": first_status is None, "waiting": False, "resumed": False, "wrong": wrong}


def open_ground(folder: Path | None = None) -> Ground:
    """A ground in a folder, or in a new temporary one, which stays."""
    return Ground(folder or Path(tempfile.mkdtemp(prefix="faults-")))


def close_ground(ground: Ground) -> None:
    """Remove it with all that stands there."""
    shutil.rmtree(ground.folder, ignore_errors=True)


def row_text(row: dict[str, object]) -> str:
    """A line of the log."""
    return json.dumps(row)
