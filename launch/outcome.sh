# Sourced by the scripts beside it: where a run's folder is, and what to do when a start of it has ended.

# run_dir_of CONFIG [key=value …]: the run's folder; fails, with the reason on stderr, where the configuration is wrong.
run_dir_of() {
    python -c "import sys
from configs import InputError, load_config
from pretrain.config import PretrainConfig
try:
    print(load_config(PretrainConfig, sys.argv[1], sys.argv[2:]).run_dir)
except InputError as error:
    sys.exit(f'error: {error}')" "$@"
}

# begin RUN_DIR: call before each start; a status that is older than this mark is not that start's.
begin() {
    mkdir -p "$1" && touch "$1/.started"
}

# outcome RUN_DIR EXIT_CODE: prints again, done or stop; why, on stderr. Launchers turn exit codes into their own, so
# the status decides. A start that was killed left no last word: it is tried again, but a run that takes no new step in
# three starts is stopped.
outcome() {
    local run_dir=$1 code=$2 state=none step=0 last=-1 starts=0
    if [ "$run_dir/status.json" -nt "$run_dir/.started" ]; then
        read -r state step < <(python -c "import json, sys
status = json.load(open(sys.argv[1]))
print(status['state'], status['step'])
print(status['reason'], file=sys.stderr)" "$run_dir/status.json")
    fi
    case $state in
        done) echo "done"; return ;;
        failed | bad_input) echo "the run says: $state" >&2; echo "stop"; return ;;
    esac
    if [ "$code" -eq 2 ] || { [ "$state" = none ] && [ "$code" -eq 0 ]; }; then
        echo "the start ended with exit code $code and wrote no status" >&2; echo "stop"; return
    fi
    [ -f "$run_dir/.starts" ] && read -r last starts < "$run_dir/.starts"
    if [ "$state" = none ]; then step=$last; fi
    if [ "$step" -gt "$last" ]; then starts=0; fi
    starts=$((starts + 1))
    echo "$step $starts" > "$run_dir/.starts"
    if [ "$starts" -ge 3 ]; then
        echo "three starts ended at step $step without a new one (status: $state, exit code: $code)" >&2
        rm -f "$run_dir/.starts"; echo "stop"; return
    fi
    echo "the run says: $state (exit code $code), at step $step" >&2
    echo "again"
}
