#!/usr/bin/env bash
# sbatch launch/slurm.sh CONFIG [key=value …]: pretraining on all GPUs of the job's nodes, requeued when preempted.
#SBATCH --job-name=lacuna
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -u

config=$1
run_dir=$(python -c "import sys; from pretrain.config import PretrainConfig as C; from configs import load_config
print(load_config(C, sys.argv[1], sys.argv[2:]).run_dir)" "$@") || exit 2
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# SIGUSR1 reaches this script only: it hands it on to the steps, which save and stop
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "${GPUS_PER_NODE:-8}" \
    --rdzv_backend c10d --rdzv_endpoint "$host:29500" --rdzv_id "$SLURM_JOB_ID" -m pretrain "$config" "${@:2}" &
step=$!
trap 'scancel --signal=USR1 "$SLURM_JOB_ID.0"' USR1
while kill -0 "$step" 2>/dev/null; do wait "$step"; done

# launchers turn every exit code into 1: the run's own word counts
state=$(python -c "import json, sys; print(json.load(open(sys.argv[1]))['state'])" "$run_dir/status.json")
echo "the run says: $state"
case $state in
    done) exit 0 ;;
    preempted) scontrol requeue "$SLURM_JOB_ID" ;;
    *) exit 1 ;;
esac
