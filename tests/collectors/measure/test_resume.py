"""A pass cut up in time by threads, checkpoints, interruptions and signals measures the same to the bit."""

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from builders.onnx_models import Net, attention_net, conv_net, images, qdq, random, save_pair, token_net, two_way_net
from builders.processes import start_python
from builders.tiers import others_nightly
from click.testing import CliRunner

import quantmedic
from quantmedic.api.remedies import simulate_remedies
from quantmedic.cli.main import cli
from quantmedic.collectors.from_onnx import onnx_models
from quantmedic.collectors.measure import collect_pair
from quantmedic.collectors.measure.collect_pair import Interrupted
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import CaseError

pytestmark = pytest.mark.thorough

X = images(42)
LABELS = np.arange(42) % 5
RULES = quantmedic.load_rulebase()
MANY, OTHER = images(100, seed=8), images(22, seed=9)


def conv_pair(**options: Any) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = conv_net(**options)
    return model, qdq(model, {"image": X[: options.get("batch", 42)] * np.float32(0.8)})


def in_pieces(*arrays: Any) -> Callable[[], Iterator[Any]]:
    """A function that yields arrays one by one."""

    def pieces() -> Iterator[Any]:
        yield from arrays

    return pieces


@dataclass
class Scene:
    """A pair of models, data and options; ``npz`` names the options that become files."""

    models: tuple[onnx.ModelProto, onnx.ModelProto]
    options: dict[str, Any]
    npz: tuple[str, ...] = ()
    paths: tuple[Path, Path] = field(init=False)

    def collect(self, **options: Any) -> Case:
        return quantmedic.collect(*self.paths, **({"threads": 2, "batch_size": 4} | self.options | options))


_IDS = np.random.default_rng(0).integers(0, 20, (40, 6))
_TOKENS = (token_net(), qdq(token_net(), {"ids": _IDS}))
SCENES = {
    "one set": Scene(conv_pair(), {"validation": X}),
    "two sets": Scene(conv_pair(), {"representative": X[:22], "validation": X}),
    "labels": Scene(conv_pair(), {"validation": {"image": X, "labels": LABELS}}, ("validation",)),
    "fixed batch": Scene(conv_pair(batch=4), {"representative": OTHER, "validation": X}),
    "function": Scene(conv_pair(), {"validation": in_pieces(X[:3], X[3:20], X[20:])}),
    "limited": Scene(conv_pair(), {"validation": X, "samples": 30}),
    "step error": Scene(conv_pair(), {"validation": X, "step_error": True}),
    "integers": Scene(_TOKENS, {"validation": {"ids": _IDS}}),
    "fast, two sets": Scene(conv_pair(), {"representative": images(70, seed=9), "validation": MANY, "mode": "fast"}),
    "fast, one set small": Scene(conv_pair(), {"representative": X, "validation": MANY, "mode": "fast"}),
    "fast, function": Scene(conv_pair(), {"validation": in_pieces(MANY[:31], MANY[31:]), "mode": "fast"}),
    "fast, fixed batch": Scene(conv_pair(batch=4), {"validation": MANY, "mode": "fast"}),
}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory) -> Callable[[str], tuple[Scene, Path]]:
    """A scene by name, and the case file of its uninterrupted pass."""
    known: dict[str, tuple[Scene, Path]] = {}

    def whole(name: str) -> tuple[Scene, Path]:
        if name not in known:
            # A copy: where tests of other modules run between, this fixture is made anew.
            scene, folder = replace(SCENES[name], options=dict(SCENES[name].options)), tmp_path_factory.mktemp("scene")
            scene.paths = save_pair(folder, *scene.models)
            for role in scene.npz:
                np.savez(folder / f"{role}.npz", **scene.options[role])
                scene.options[role] = folder / f"{role}.npz"
            known[name] = scene, folder / "whole.case"
            quantmedic.save_case(scene.collect(), known[name][1])
        return known[name]

    return whole


class StopAfter:
    """A progress callback that interrupts at its ``calls``-th call."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def content(path: Path) -> dict[str, bytes]:
    """Everything in a case file: its record and every bit of its arrays."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def assert_identical(case: Case, path: Path, tmp_path: Path) -> None:
    quantmedic.save_case(case, tmp_path / "found.case")
    found, expected = content(tmp_path / "found.case"), content(path)
    assert list(found) == list(expected)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


def interrupted(scene: Scene, path: Path, calls: int, **options: Any) -> Case:
    return interrupt_of(lambda: scene.collect(checkpoint=path, progress=StopAfter(calls), **options)).case


def interrupt_of(action: Callable[[], Any]) -> Interrupted:
    """The interrupt that an action ends with; a bare one, which would end the tests too, is a failure."""
    with pytest.raises(KeyboardInterrupt) as stopped:
        action()
    assert isinstance(stopped.value, Interrupted)
    return stopped.value


def check_unfinished(path: Path) -> int:
    """The file is valid, consistent, says how far it is, and can be judged; returns the samples in it."""
    case = quantmedic.load_case(path)
    for role, known in case.record.datasets.items():
        statistics = case.statistics[role]
        assert known.seen == sum(known.parts) == len(statistics.samples) > 0
        assert len(np.unique(statistics.samples["hash"])) == known.seen
        assert statistics.tensor_samples.max() == known.seen
        if len(known.parts) == 1:
            assert (statistics.tensor_samples == known.seen).all()
    last = [*case.record.datasets.values()][-1]
    assert not last.complete
    diagnosis = quantmedic.judge(case, RULES)
    assert any("not read to its end" in warning for warning in diagnosis.warnings)
    return sum(known.seen for known in case.record.datasets.values())


# --- threads and checkpoints ---------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fast, two sets", "step error"])
def test_every_checkpoint_is_a_case_to_go_on_from(wholes, name, tmp_path, monkeypatch):
    """What is on the disk when the process is killed: the pass goes on from there to the same end."""
    scene, path = wholes(name)
    save, kept = quantmedic.api.collect.save_case, []

    def keep(case: Case, target: Path) -> None:
        save(case, target)
        kept.append(shutil.copy(target, tmp_path / f"{len(kept)}.case"))

    monkeypatch.setattr(collect_pair, "CHECKPOINT_SECONDS", 0.0)  # after every batch
    monkeypatch.setattr(quantmedic.api.collect, "save_case", keep)
    case = scene.collect(checkpoint=tmp_path / "c.case", threads=16)
    monkeypatch.undo()
    assert_identical(case, path, tmp_path)
    assert len(kept) >= 4
    for file in (kept[0], kept[len(kept) // 2], kept[-1]):
        check_unfinished(file)
        assert_identical(scene.collect(checkpoint=file, resume=True), path, tmp_path)


@pytest.mark.nightly
def test_too_few_samples_for_a_selection_are_measured_exactly(wholes, tmp_path):
    scene, _ = wholes("one set")
    for samples in (1, 63):
        data = {"representative": MANY[: samples // 2 + 1], "validation": in_pieces(MANY[:samples])}
        exact, fast = (scene.collect(**data, mode=mode) for mode in ("exact", "fast"))
        exact.record.run["mode"] = "fast"
        quantmedic.save_case(exact, tmp_path / "exact.case")
        assert_identical(fast, tmp_path / "exact.case", tmp_path)


# --- interruptions ---------------------------------------------------------------------------------------------------


def of_samples(progress: Callable[..., None]) -> Callable[..., None]:
    """Only what is told of samples, not of simulated remedies: these begin anew whenever they are interrupted."""

    def told(stage: str, done: int, total: int | None) -> None:
        if stage not in ("remedies", "loss budget"):
            progress(stage, done, total)

    return told


@pytest.mark.parametrize("name", others_nightly(SCENES, "two sets"))
def test_a_pass_that_is_interrupted_again_and_again_ends_with_the_same_bits(wholes, name, tmp_path):
    """With another number of threads each time; and once it is finished, nothing is read any more."""
    scene, path = wholes(name)
    file, seen = tmp_path / "c.case", 0
    for turn in range(40):
        try:
            stop = of_samples(StopAfter(2 + turn % 3))
            case = scene.collect(checkpoint=file, resume=True, progress=stop, threads=1 + turn % 3)
            break
        except Interrupted:
            before, seen = seen, check_unfinished(file)
            assert seen > before
    assert turn >= 2
    assert_identical(case, path, tmp_path)

    shutil.copy(path, file)
    shown: list[Any] = []
    case = scene.collect(checkpoint=file, resume=True, progress=lambda *told: shown.append(told))
    assert shown == []
    assert_identical(case, path, tmp_path)
    assert content(file) == content(path)


@pytest.fixture
def attributed(monkeypatch) -> None:
    """The loss is divided behind the pass, and anew each time."""
    monkeypatch.setattr(quantmedic.api.collect, "simulate_remedies", simulate_remedies)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["fixed batch", "fast, function"])
def test_interrupted_behind_the_last_sample(wholes, name, tmp_path, attributed):
    scene, _ = wholes(name)
    calls: list[int] = []
    whole = scene.collect(progress=lambda stage, done, total: calls.append(done))
    quantmedic.save_case(whole, tmp_path / "whole.case")
    file = tmp_path / "c.case"
    interrupted(scene, file, len(calls))
    assert_identical(scene.collect(checkpoint=file, resume=True), tmp_path / "whole.case", tmp_path)


def test_an_interrupted_case_is_reported(wholes, tmp_path):
    interrupted(wholes("fast, two sets")[0], tmp_path / "c.case", 1)
    done = CliRunner().invoke(cli, ["diagnose", str(tmp_path / "c.case"), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report" / "index.html").stat().st_size > 1000


def test_going_on_without_a_case_starts_anew(wholes, tmp_path):
    scene, path = wholes("labels")
    assert_identical(scene.collect(checkpoint=tmp_path / "none.case", resume=True), path, tmp_path)


def test_an_interrupt_before_anything_was_measured_leaves_the_file_alone(wholes, tmp_path):
    scene, path = wholes("one set")
    file = Path(shutil.copy(path, tmp_path / "c.case"))

    def reading() -> Iterator[Any]:
        yield X[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        scene.collect(validation=reading, batch_size=8, checkpoint=file)
    assert not isinstance(stopped.value, Interrupted)
    assert content(file) == content(path)


def test_an_interrupt_while_data_are_read_keeps_what_was_measured(wholes, tmp_path):
    scene, path = wholes("function")
    file, passes = tmp_path / "c.case", []

    def pieces() -> Iterator[Any]:
        passes.append(None)
        yield X[:20]
        if len(passes) > 1:
            raise KeyboardInterrupt
        yield X[20:]

    interrupt_of(lambda: scene.collect(validation=pieces, checkpoint=file))
    assert check_unfinished(file) == 20
    assert_identical(scene.collect(validation=pieces_again(), checkpoint=file, resume=True), path, tmp_path)


def pieces_again() -> Callable[[], Iterator[Any]]:
    return in_pieces(X[:20], X[20:])


# --- what changes from batch to batch --------------------------------------------------------------------------------


def swapping_net() -> onnx.ModelProto:
    """A tensor whose first axis counts colours: as many as there are samples in a batch of three."""
    net = Net()
    x = net.add("Transpose", net.input("image", ["n", 3, 8, 8]), out="planes", perm=[1, 0, 2, 3])
    x = net.add("Transpose", x, out="back", perm=[1, 0, 2, 3])
    net.output(net.conv(x, random(1, 2, 3, 1, 1), out="scores"))
    return net.model()


def scene_of(model: onnx.ModelProto, quantized: onnx.ModelProto, folder: Path, **options: Any) -> Scene:
    scene = Scene((model, quantized), options)
    scene.paths = save_pair(folder, model, quantized)
    return scene


def test_a_first_axis_that_turned_out_to_hold_no_samples_stays_known(tmp_path):
    model = swapping_net()
    quantized = qdq(model, {"image": X})
    scene = scene_of(model, quantized, tmp_path, representative=X[:4], validation=X[:25], batch_size=3)
    path = tmp_path / "whole.case"
    quantmedic.save_case(scene.collect(), path)
    for calls in (3, 10):
        file = tmp_path / f"{calls}.case"
        interrupted(scene, file, calls)
        assert_identical(scene.collect(checkpoint=file, resume=True), path, tmp_path)


def test_features_of_another_width_stay_left_out(tmp_path):
    model, steps = attention_net(), in_pieces(*(random(n, 4, n, 8) for n in (5, 6, 7, 8, 9)))
    scene = scene_of(model, qdq(model, {"x": random(1, 13, 5, 8)}), tmp_path, validation=steps)
    file, path = tmp_path / "c.case", tmp_path / "whole.case"
    quantmedic.save_case(scene.collect(), path)
    interrupted(scene, file, 2, threads=1)
    assert_identical(scene.collect(checkpoint=file, resume=True), path, tmp_path)


# --- what does not fit -----------------------------------------------------------------------------------------------


def _changed(x: Any) -> Any:
    x = x.copy()
    x[0, 0, 0, 0] += 1
    return x


_LABELLED = {"image": X, "labels": LABELS}
OTHERS = {
    "other first sample": ({"validation": _LABELLED | {"image": _changed(X)}}, "validation"),
    "other order": ({"validation": {"image": X[::-1], "labels": LABELS}}, "validation"),
    "less data": ({"validation": {"image": X[:8], "labels": LABELS[:8]}}, "validation"),
    "other kind of source": ({"validation": in_pieces((X, LABELS))}, "validation"),
    "no longer that set": ({"validation": None, "representative": _LABELLED}, "validation"),
    "batch size": ({"batch_size": 5}, "batch_size: 4 then, 5 now"),
    "mode": ({"mode": "fast"}, "mode: exact then, fast now"),
    "samples": ({"samples": 30}, "samples: not given then, 30 now"),
    "seed": ({"seed": 3}, "seed: 0 then, 3 now"),
    "step error": ({"step_error": True}, "step_error"),
    "metric": ({"metric": "top5"}, "metric"),
    "no labels": ({"validation": {"image": X}}, "metric"),
    "other labels": ({"validation": {"image": X, "labels": (LABELS + 1) % 5}}, ""),
}


def test_other_data_labels_options_or_models_are_refused(wholes, tmp_path, subtests):
    scene, _ = wholes("labels")
    file = tmp_path / "c.case"
    interrupted(scene, file, 4)
    before = file.read_bytes()
    for name, (options, words) in OTHERS.items():
        with subtests.test(name):
            with pytest.raises(CaseError) as refused:
                scene.collect(checkpoint=file, resume=True, **options)
            assert words in str(refused.value)
            assert file.read_bytes() == before
            assert [path.name for path in tmp_path.iterdir()] == ["c.case"]
    for position, words in enumerate(("float_sha256", "quantized_sha256")):
        other = onnx.load(scene.paths[position])
        other.doc_string = "trained a little longer"
        paths = list(scene.paths)
        paths[position] = tmp_path / "other.onnx"
        onnx.save(other, str(paths[position]))
        with pytest.raises(CaseError, match=words):
            quantmedic.collect(*paths, **scene.options, batch_size=4, checkpoint=file, resume=True)
        assert file.read_bytes() == before


def test_a_metric_of_another_output_is_refused(tmp_path):
    model, a, b = two_way_net(), random(1, 40, 4), random(2, 40, 6)
    scene = scene_of(model, qdq(model, {"a": a, "b": b}), tmp_path, metric="mae", metric_output="first")
    data = {"a": a, "b": b}
    file = tmp_path / "c.case"
    interrupted(scene, file, 3, validation=data | {"labels": random(3, 40, 3)})
    with pytest.raises(CaseError):
        other = data | {"labels": random(3, 40, 7)}
        scene.collect(checkpoint=file, resume=True, validation=other, metric_output="second")


def test_a_damaged_case_is_refused(wholes, tmp_path):
    scene, _ = wholes("one set")
    file = tmp_path / "c.case"
    interrupted(scene, file, 4)
    damaged = file.read_bytes()[:-100]
    file.write_bytes(damaged)
    with pytest.raises(CaseError, match=r"c\.case"):
        scene.collect(checkpoint=file, resume=True)
    assert file.read_bytes() == damaged


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Sends this process a Ctrl-C, which a test runner may have chosen to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("threads", others_nightly([1, 4]))
def test_ctrl_c_in_the_middle_of_a_batch_keeps_what_was_measured(wholes, threads, ctrl_c, tmp_path, monkeypatch):
    scene, _ = wholes("labels")
    calls: list[int] = []

    def metric(outputs: Any, labels: Any) -> Any:
        calls.append(len(labels))
        if len(calls) == 8:
            ctrl_c()
        return np.zeros(len(labels))

    metric.higher_is_better = True  # type: ignore[attr-defined]
    module = ModuleType("metric_of_test_resume")
    module.metric = metric  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    options = {"metric": f"{module.__name__}:metric", "threads": threads}
    file = tmp_path / "c.case"
    interrupt_of(lambda: scene.collect(checkpoint=file, **options))
    check_unfinished(file)
    quantmedic.save_case(scene.collect(**options), tmp_path / "whole.case")
    assert_identical(scene.collect(checkpoint=file, resume=True, **options), tmp_path / "whole.case", tmp_path)


def test_ctrl_c_while_remedies_are_simulated_keeps_all_that_was_measured(tmp_path, attributed):
    (float_model, int8), options = patient()

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage == "remedies":
            raise KeyboardInterrupt

    file = tmp_path / "c.case"
    found = interrupt_of(
        lambda: quantmedic.collect(float_model, int8, checkpoint=file, progress=progress, samples=64, **options)
    )
    assert found.case.record.simulation is None
    kept = quantmedic.load_case(file).record.datasets
    assert {role: (d.seen, d.complete) for role, d in kept.items()} == {
        "representative": (64, True),
        "validation": (64, True),
    }


def test_a_second_ctrl_c_does_not_write_a_case_that_still_changes(wholes, ctrl_c, tmp_path, monkeypatch):
    """Nothing on the disk is as good as something consistent."""
    scene, _ = wholes("one set")
    read, save, calls = onnx_models.OnnxView.read_tensors, quantmedic.api.collect.save_case, []

    def slow_read(view: Any, batch: Any) -> Any:
        calls.append(None)
        if len(calls) == 6:
            ctrl_c()
            time.sleep(0.1)
            ctrl_c()
        if len(calls) >= 6:
            time.sleep(0.2)
        return read(view, batch)

    def slow_save(case: Case, path: Path) -> None:
        time.sleep(0.5)
        save(case, path)

    monkeypatch.setattr(onnx_models.OnnxView, "read_tensors", slow_read)
    monkeypatch.setattr(quantmedic.api.collect, "save_case", slow_save)
    with pytest.raises(KeyboardInterrupt):
        scene.collect(checkpoint=tmp_path / "c.case")
    time.sleep(0.8)
    if (tmp_path / "c.case").exists():
        check_unfinished(tmp_path / "c.case")


def test_an_interrupt_while_a_case_is_written_leaves_no_scrap(wholes, tmp_path, monkeypatch):
    case = quantmedic.load_case(wholes("one set")[1])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
        quantmedic.save_case(case, tmp_path / "c.case")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_within_a_member_of_a_case_stays_one(wholes, tmp_path, monkeypatch):
    """An archive that is closed while a member is written raises an error of its own."""
    case, begin = quantmedic.load_case(wholes("one set")[1]), zipfile.ZipFile._open_to_write

    def interrupted(*arguments, **options):
        begin(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(zipfile.ZipFile, "_open_to_write", interrupted)
        quantmedic.save_case(case, tmp_path / "c.case")
    assert list(tmp_path.iterdir()) == []


@dataclass
class Commands:
    """The command line over data that a function yields slowly, noting how many samples it has given."""

    folder: Path
    paths: tuple[Path, Path]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        code = (
            "import quantmedic.collectors.measure.collect_pair as c; from quantmedic.cli.main import main; "
            "c.CHECKPOINT_SECONDS = "
            f"{'0.1' if 'often' in arguments else '30'}; main()"
        )
        words = [word for word in arguments if word != "often"]
        return start_python(
            code,
            words[0],
            *map(str, self.paths),
            *words[1:],
            cwd=self.folder,
            env=os.environ | {"SLOW": "0.01"},
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_for(self, happened: Callable[[], bool], running: subprocess.Popen[str]) -> None:
        end = time.monotonic() + 60
        while not happened():
            assert running.poll() is None, running.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.01)

    def given(self) -> int:
        path = self.folder / "given"
        return path.stat().st_size if path.exists() else 0


@pytest.fixture
def commands(wholes, tmp_path, monkeypatch) -> Commands:
    (tmp_path / "slow_data.py").write_text(
        "import os, time, numpy as np\n"
        "def batches():\n"
        "    x = np.load('x.npy')\n"
        "    for i in range(0, len(x), 4):\n"
        "        time.sleep(float(os.environ.get('SLOW', 0)))\n"
        "        with open('given', 'a') as file:\n"
        "            file.write('....')\n"
        "        yield x[i:i + 4]\n"
    )
    np.save(tmp_path / "x.npy", images(300))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_data", raising=False)
    yield Commands(tmp_path, wholes("one set")[0].paths)
    sys.modules.pop("slow_data", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


DATA = ("-v", "slow_data:batches", "--batch-size", "4", "--threads", "2")
#: The loss is divided anew whenever a command goes on: what is kept shows without.
BRIEF = (*DATA, "--no-attribution")


@pytest.mark.parametrize(
    ("number", "command", "options", "file", "given"),
    others_nightly(
        [
            (signal.SIGTERM, "collect", (*BRIEF, "-o", "c.case", "--mode", "fast"), "c.case", 400),
            (signal.SIGINT, "diagnose", (*DATA, "-o", "r"), "r/quantmedic.case", 120),
        ]
    ),
)
def test_a_command_that_is_stopped_says_what_it_has_and_goes_on(commands, number, command, options, file, given):
    """``given``: samples that the data have yielded by then; the fast mode counts them all first."""
    running = commands.start(command, *options)
    commands.wait_for(lambda: commands.given() >= given, running)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert "Traceback" not in out + err
    seen = check_unfinished(commands.folder / file)
    assert f"{file} holds what {seen} validation samples showed" in err
    assert "--resume" in err
    assert out == ""
    models = [str(path) for path in commands.paths]
    done = CliRunner().invoke(cli, [command, *models, *options, "--resume"])
    assert done.exit_code == 0, done.output
    resumed = content(Path(file))
    done = CliRunner().invoke(cli, [command, *models, *options])
    assert done.exit_code == 0, done.output
    assert resumed == content(Path(file))


@pytest.mark.nightly
def test_a_killed_command_leaves_its_last_checkpoint(commands):
    options = (*BRIEF, "-o", "c.case")
    running = commands.start("collect", "often", *options)
    commands.wait_for(lambda: Path("c.case").exists() and commands.given() >= 100, running)
    running.kill()
    running.communicate(timeout=60)
    check_unfinished(Path("c.case"))
    models = [str(path) for path in commands.paths]
    done = CliRunner().invoke(cli, ["collect", *models, *options, "--resume"])
    assert done.exit_code == 0, done.output
    resumed = content(Path("c.case"))
    assert CliRunner().invoke(cli, ["collect", *models, *options]).exit_code == 0
    assert resumed == content(Path("c.case"))


@pytest.mark.nightly
def test_a_finished_case_stays_until_the_next_one_is_finished(commands):
    models = [str(path) for path in commands.paths]
    options = (*BRIEF, "-o", "c.case")
    assert CliRunner().invoke(cli, ["collect", *models, *options]).exit_code == 0
    finished, given = Path("c.case").read_bytes(), commands.given()
    running = commands.start("collect", *options)
    commands.wait_for(lambda: commands.given() >= given + 120, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert "c.unfinished.case holds what" in err
    assert Path("c.case").read_bytes() == finished
    check_unfinished(Path("c.unfinished.case"))
    done = CliRunner().invoke(cli, ["collect", *models, *options, "--resume"])
    assert done.exit_code == 0, done.output
    assert Path("c.case").read_bytes() == finished
    assert not Path("c.unfinished.case").exists()


@pytest.mark.nightly
def test_a_case_that_nothing_was_tried_on_says_so(wholes, tmp_path, attributed, monkeypatch):
    """An interrupt behind the last sample: the data were read to their end, and yet the work is not done."""
    scene, _ = wholes("one set")
    file = tmp_path / "c.case"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("quantmedic.api.collect.simulate_remedies", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        scene.collect(checkpoint=file)
    done = CliRunner().invoke(cli, ["diagnose", str(file), "-o", str(tmp_path / "report")])
    assert "interrupted before the noise was divided" in done.stdout.replace("\n  ", " ")
    assert "interrupted before the noise was divided" in (tmp_path / "report/report.md").read_text()
    quantmedic.save_case(scene.collect(), tmp_path / "whole.case")
    assert_identical(scene.collect(checkpoint=file, resume=True), tmp_path / "whole.case", tmp_path)
