#!/usr/bin/env bash
# sbatch launch/slurm.sh CONFIG [key=value …]: one process a GPU on every node of the job, requeued when preempted.
# Submit from the repository's root with its environment active. Set nodes, tasks and GPUs on the command line or here.
#SBATCH --job-name=lacuna
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -u
. launch/outcome.sh # Slurm runs a copy of this script from elsewhere, in the folder where it was submitted

run_dir=$(run_dir_of "$@") || exit 2
export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
begin "$run_dir"

# no launcher between srun and the processes: signals reach them directly
srun --kill-on-bad-exit=1 bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
exec python -m pretrain "$@"' _ "$@" &
step=$!
# Slurm warns this script only, and a trap runs only while nothing is in the foreground: hand it on and wait again
trap 'scancel --signal=USR1 "$SLURM_JOB_ID.0"' USR1
while true; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break
done

case $(outcome "$run_dir" "$code") in
    done) exit 0 ;;
    again) scontrol requeue "$SLURM_JOB_ID" ;;
    *) exit 1 ;;
esac
