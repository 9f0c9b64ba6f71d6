#!/usr/bin/env bash
# A Dask cluster inside of one SLURM job: a scheduler, workers on all of its tasks, and the command that uses them.
#
#   sbatch --ntasks=64 examples/cluster/slurm-dask.sh
#
# PYTHON is one in which quantmedic[cluster] is installed, such as .venv/bin/python, on all nodes.
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
set -euo pipefail
FLOAT=${FLOAT:-float.onnx} QUANT=${QUANT:-int8.onnx} PYTHON=${PYTHON:-python3}
REPRESENTATIVE=${REPRESENTATIVE:-rep.npz} VALIDATION=${VALIDATION:-val.npz} REPORT=${REPORT:-report}
scheduler=$PWD/scheduler-${SLURM_JOB_ID:-$$}.json
# srun starts one worker per task; where there is no SLURM, START=env starts one here.
START=${START:-srun}
# Seconds that the scheduler has to start.
PATIENCE=${PATIENCE:-120}
fail() { echo "$0: $1" >&2; exit 2; }
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$scheduler"' EXIT

"$PYTHON" -c "import distributed, quantmedic" || fail "PYTHON=$PYTHON lacks quantmedic[cluster]"
"$PYTHON" -m dask scheduler --scheduler-file "$scheduler" --port 0 --no-dashboard &
latest=$((SECONDS + PATIENCE))
until [ -s "$scheduler" ]; do
  kill -0 $! 2>/dev/null || fail "the scheduler has ended: see what it says above"
  [ "$SECONDS" -lt "$latest" ] || fail "the scheduler has not started within $PATIENCE seconds"
  sleep 0.2
done
$START "$PYTHON" -m dask worker --scheduler-file "$scheduler" --nthreads 1 --no-dashboard &
"$PYTHON" -m quantmedic diagnose "$FLOAT" "$QUANT" --representative "$REPRESENTATIVE" --validation "$VALIDATION" \
  --cluster "$scheduler" -o "$REPORT"
