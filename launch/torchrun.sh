#!/usr/bin/env bash
# launch/torchrun.sh PROCESSES CONFIG [key=value …]: start again after every preemption, until done or failed.
# A signal to this script is handed on; the run saves, and the script ends with 75: the machine is wanted back.
set -u
. "$(dirname "$0")/outcome.sh"
processes=$1
shift
run_dir=$(run_dir_of "$@") || exit 2
asked=
trap 'asked=yes; kill -TERM "$child" 2>/dev/null' TERM INT USR1
while true; do
    begin "$run_dir"
    torchrun --standalone --nproc_per_node "$processes" -m pretrain "$@" &
    child=$!
    while true; do
        wait "$child"
        code=$?
        kill -0 "$child" 2>/dev/null || break # else a signal ended the wait
    done
    case $(outcome "$run_dir" "$code") in
        done) exit 0 ;;
        again) [ -n "$asked" ] && exit 75 ;;
        *) exit 1 ;;
    esac
done
