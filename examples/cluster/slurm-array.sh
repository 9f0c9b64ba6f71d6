#!/usr/bin/env bash
# A SLURM array without any engine: every job measures one shard; the last command goes on from all of them.
#
#   sbatch --wait --array=1-16 examples/cluster/slurm-array.sh
#   bash examples/cluster/slurm-array.sh diagnose
#
# One that failed is repeated with the number of all: COUNT=16 sbatch --wait --array=2 examples/cluster/slurm-array.sh
# OPTIONS holds what else all commands get, such as OPTIONS="-p scale=255 -p mean=0.5"; quantmedic must be on the PATH of
# the jobs. The last command simulates remedies where it is called, with all processors: run it with srun.
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
set -euo pipefail
FLOAT=${FLOAT:-float.onnx} QUANT=${QUANT:-int8.onnx}
REPRESENTATIVE=${REPRESENTATIVE:-rep.npz} VALIDATION=${VALIDATION:-val.npz}
SHARDS=${SHARDS:-shards} REPORT=${REPORT:-report}
read -ra more <<<"${OPTIONS:-}"
data=(--representative "$REPRESENTATIVE" --validation "$VALIDATION" "${more[@]}")

if [ "${1:-}" = diagnose ]; then
  exec quantmedic diagnose "$FLOAT" "$QUANT" "${data[@]}" --shards "$SHARDS" -o "$REPORT"
fi
TASK=${SLURM_ARRAY_TASK_ID:?"run it with sbatch --array=1-16; this command measures one shard"}
exec quantmedic collect "$FLOAT" "$QUANT" "${data[@]}" --threads "${SLURM_CPUS_PER_TASK:-1}" \
  --shard "$TASK/${COUNT:-$SLURM_ARRAY_TASK_COUNT}" -o "$SHARDS/$TASK.case"
