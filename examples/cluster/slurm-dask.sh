#!/usr/bin/env bash
# A Dask cluster inside of one SLURM job: a scheduler, workers on all of its tasks, and the command that uses them.
#
#   sbatch --ntasks=64 examples/cluster/slurm-dask.sh
#
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
set -euo pipefail
FLOAT=${FLOAT:-float.onnx} QUANT=${QUANT:-int8.onnx}
REPRESENTATIVE=${REPRESENTATIVE:-rep.npz} VALIDATION=${VALIDATION:-val.npz} REPORT=${REPORT:-report}
scheduler=$PWD/scheduler-${SLURM_JOB_ID:-$$}.json
# srun starts one worker per task; where there is no SLURM, START=env starts one here.
START=${START:-srun}
trap 'kill $(jobs -p) 2>/dev/null; rm -f "$scheduler"' EXIT

dask scheduler --scheduler-file "$scheduler" --port 0 --no-dashboard &
until [ -f "$scheduler" ]; do sleep 0.2; done
$START dask worker --scheduler-file "$scheduler" --nthreads 1 --no-dashboard &
quantmedic diagnose "$FLOAT" "$QUANT" --representative "$REPRESENTATIVE" --validation "$VALIDATION" \
  --cluster "$scheduler" -o "$REPORT"
