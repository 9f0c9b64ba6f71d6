"""The examples of clusters do what they say, as far as one machine can tell."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import quantmedic
from quantmedic.demo import patient

pytest.importorskip("distributed", reason="dask and distributed are not installed")
EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder with commands of this Python, the demo's data, and the variables that the scripts read."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "bin").mkdir()
    write_script(folder / "bin/quantmedic", f'exec "{sys.executable}" -m quantmedic "$@"')
    names = {"representative": "REPRESENTATIVE", "validation": "VALIDATION"}
    given, found = patient()[1], {}
    for role, variable in names.items():
        with np.load(given[role]) as stored:
            arrays = {name: stored[name][:130] for name in stored.files}
        np.savez(folder / f"{role}.npz", **{**arrays, "image": arrays["image"].astype(np.float32) / 255})
        found[variable] = str(folder / f"{role}.npz")
    models = dict(zip(("FLOAT", "QUANT"), map(str, patient()[0]), strict=True))
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    root = {"PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES.parents[1]), os.environ.get("PYTHONPATH")]))}
    settings = {"QUANTMEDIC_NO_PROVE": "1", "PYTHON": sys.executable}
    return folder, {**os.environ, **found, **models, **paths, **root, **settings}


def write_script(path, command):
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return str(path)


def run(folder, environment, *command, **variables):
    done = subprocess.run(
        command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.nightly
def test_a_cluster_in_a_job_gives_what_one_machine_does(environment):
    folder, variables = environment
    data = ("-r", variables["REPRESENTATIVE"], "-v", variables["VALIDATION"])
    alone = ("diagnose", variables["FLOAT"], variables["QUANT"], *data, "--threads", "1", "-o", "alone")
    run(folder, variables, sys.executable, "-m", "quantmedic", *alone)
    run(folder, variables, "bash", str(EXAMPLES / "slurm-dask.sh"), START="env", REPORT="dask")
    one, other = (quantmedic.load_case(folder / name) for name in ("alone", "dask"))
    assert one.record == other.record
    columns = one.statistics["validation"].columns
    assert all(np.array_equal(columns[name], other.statistics["validation"].columns[name]) for name in columns)


def test_a_scheduler_that_does_not_start_is_not_waited_for(tmp_path):
    for python, words in (
        ("exit 1", "lacks quantmedic[cluster]"),
        ('[ "$1" = -c ]', "the scheduler has ended"),
        ('[ "$1" = -c ] || exec sleep 60', "the scheduler has not started within 1 seconds"),
    ):
        variables = {"PYTHON": write_script(tmp_path / "python", python), "PATIENCE": "1", "START": "env"}
        done = subprocess.run(
            ["bash", str(EXAMPLES / "slurm-dask.sh")],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and words in done.stderr


@pytest.mark.nightly
def test_the_script_for_a_queue_runs(environment):
    folder, variables = environment
    arguments = [variables[name] for name in ("FLOAT", "QUANT", "VALIDATION")]
    script = str(EXAMPLES / "jobqueue.py")
    done = run(folder, variables, sys.executable, script, *arguments, "queue", QUANTMEDIC_QUEUE="local")
    assert done.stdout.split()[-1] in ("healthy", "undecided", "degraded")
    assert (folder / "queue" / "index.html").is_file()


def test_the_manifest_names_one_scheduler():
    parts = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    service = next(part for part in parts if part["kind"] == "Service")
    address = f"tcp://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    containers = [
        container
        for part in parts
        if part["kind"] in ("Deployment", "Job")
        for container in part["spec"]["template"]["spec"]["containers"]
    ]
    commands = [" ".join(container["command"]) for container in containers]
    assert sum(address in command for command in commands) == 2 and len({c["image"] for c in containers}) == 1
    client = next(command for command in commands if command.startswith("quantmedic diagnose"))
    assert f"--cluster={address}" in client
