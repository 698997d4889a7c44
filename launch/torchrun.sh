#!/usr/bin/env bash
# launch/torchrun.sh PROCESSES CONFIG [key=value …]: start again after every preemption, until done or failed.
set -u
processes=$1 config=$2
run_dir=$(python -c "import sys; from pretrain.config import PretrainConfig as C; from configs import load_config
print(load_config(C, sys.argv[1], sys.argv[2:]).run_dir)" "${@:2}") || exit 2
while true; do
    torchrun --standalone --nproc_per_node "$processes" -m pretrain "$config" "${@:3}"
    state=$(python -c "import json, sys; print(json.load(open(sys.argv[1]))['state'])" "$run_dir/status.json")
    case $state in
        done) exit 0 ;;
        preempted) continue ;;
        *) echo "the run says: $state" >&2; exit 1 ;;
    esac
done
