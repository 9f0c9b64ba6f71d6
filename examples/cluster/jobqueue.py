"""Workers that dask-jobqueue starts as jobs of SLURM, each with one thread, as many as there is work for.

    pip install 'quantmedic[cluster]' dask-jobqueue
    python examples/cluster/jobqueue.py float.onnx int8.onnx val.npz report

``QUANTMEDIC_QUEUE=local`` starts two workers on this machine instead, to try it.
"""

import os
import sys
from typing import Any

from distributed import Client, LocalCluster

import quantmedic

#: Jobs at most.
JOBS = 64


def start_cluster() -> Any:
    """Workers of the queue, or of this machine."""
    if os.environ.get("QUANTMEDIC_QUEUE") == "local":
        return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    from dask_jobqueue import SLURMCluster  # only where there is a queue

    cluster = SLURMCluster(cores=1, processes=1, memory="8GB", walltime="01:00:00")
    cluster.adapt(minimum=1, maximum=JOBS)
    return cluster


def main() -> None:
    """Diagnose with all workers that the queue gives."""
    float_model, quantized_model, validation, report = sys.argv[1:]
    with start_cluster() as cluster, Client(cluster) as client:
        diagnosis = quantmedic.diagnose(
            float_model, quantized_model, validation=validation, output=report, cluster=client
        )
    print(diagnosis.verdict)


if __name__ == "__main__":
    main()
