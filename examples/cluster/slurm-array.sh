#!/usr/bin/env bash
# A SLURM array without any engine: every job measures one shard; the last command goes on from all of them.
#
#   sbatch --wait --array=1-16 examples/cluster/slurm-array.sh
#   bash examples/cluster/slurm-array.sh diagnose
#
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
set -euo pipefail
FLOAT=${FLOAT:-float.onnx} QUANT=${QUANT:-int8.onnx}
REPRESENTATIVE=${REPRESENTATIVE:-rep.npz} VALIDATION=${VALIDATION:-val.npz}
SHARDS=${SHARDS:-shards} REPORT=${REPORT:-report}
data=(--representative "$REPRESENTATIVE" --validation "$VALIDATION")

if [ "${1:-}" = diagnose ]; then
  exec quantmedic diagnose "$FLOAT" "$QUANT" "${data[@]}" --shards "$SHARDS" -o "$REPORT"
fi
exec quantmedic collect "$FLOAT" "$QUANT" "${data[@]}" --threads "${SLURM_CPUS_PER_TASK:-1}" \
  --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" -o "$SHARDS/$SLURM_ARRAY_TASK_ID.case"
