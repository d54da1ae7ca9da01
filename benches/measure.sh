#!/bin/sh
# Measures and tests on all GPUs of this machine. Leaves the results in a folder, in at most 10 files.
# docs/measuring.md explains each command.
#
#   benches/measure.sh FOLDER [PROGRAM [tests|times|decode|low-latency|nodes|sweep|own|sanitizers]]
#
# PROGRAM is `epforge`, built with `cargo build --release -p ep-cli -p own-pipeline`; `tag_cost` is
# taken from the same folder. Where they run, `own` needs this repository, and the others nothing else of it, but
# NVRTC has to be found there (`epforge doctor`). Ends with 1 if a command failed; the others have run all the
# same.
set -u

folder=${1:?usage: measure.sh FOLDER [PROGRAM [tests|times|decode|low-latency|nodes|sweep|own|sanitizers]]}
program=${2:-target/release/epforge}
part=${3:-all}
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
failed=0
mkdir -p "$folder"
# A rank that is ended on purpose has a lot of memory to leave behind.
ulimit -c 0

# step SECONDS FILE COMMAND..: one command, its results in FILE, what else it says in errors.txt
step() {
    seconds=$1 file=$2
    shift 2
    echo "== $*" | tee -a "$folder/errors.txt"
    EP_REQUIRE_GPUS=$gpus timeout "$seconds" "$@" >>"$folder/$file" 2>>"$folder/errors.txt" || {
        echo "== failed with $?" | tee -a "$folder/errors.txt"
        failed=1
    }
}

wants() {
    [ "$part" = all ] || [ "$part" = "$1" ]
}

if [ "$gpus" -eq 0 ]; then
    echo "there is no GPU" >&2
    exit 1
fi
{
    nvidia-smi
    nvidia-smi topo -m
} >"$folder/machine.txt" 2>&1
step 60 machine.txt "$program" doctor
if wants tests; then
    step 540 selftest.txt "$program" selftest
fi

processes=
[ "$gpus" -gt 1 ] && processes=--processes
# bench SECONDS FILE WORDS..: `epforge bench` on all GPUs
bench() {
    seconds=$1 file=$2
    shift 2
    # shellcheck disable=SC2086 # No word at all without several GPUs.
    step "$seconds" "$file" "$program" bench --json $processes --ranks "$gpus" "$@"
}
if wants times; then
    bench 150 target.jsonl --sms 8,12,16,24,32
    bench 60 target.jsonl --sms 8,12,16,24 --op dispatch-counted --mode loop --probe no
    bench 60 target.jsonl --sms 12,24 --routing zipf:1.2,hot:0.9 --op dispatch,cached-dispatch,combine \
        --mode loop --probe no
    # A call takes some 20 us and the ranks do not begin at one moment: many make up for it.
    bench 90 small.jsonl --tokens 128 --sms 8,16,24 --iterations 500
    if [ "$gpus" -gt 2 ]; then
        step 90 others.jsonl "$program" bench --json --processes --ranks 2 --sms 8,16,24
    fi
    bench 90 others.jsonl --set via=ring --sms 24
    tag_cost=$(dirname "$program")/tag_cost
    [ ! -x "$tag_cost" ] || step 90 others.jsonl "$tag_cost"
    step 20 errors.txt "$program" bench --draw "$folder/target.jsonl" --chart "$folder/target.svg"
fi

# Few tokens, in graphs: within 200 s together, the figures that matter most first. Each is printed when it is
# there, so that a command that is cut short loses only the rest.
if wants decode; then
    bench 110 decode.jsonl --graph 8 --set experts=288 --op dispatch,combine,both --sms 24 \
        --tokens 1,8,32,128,512
    bench 50 decode.jsonl --graph 8 --set experts=288 --op dispatch,combine,both --sms 16 \
        --tokens 8,32,128 --mode loop --probe no
    bench 35 decode.jsonl --graph 8 --set experts=288 --op dispatch,both --sms 24 --tokens 128 \
        --mode loop --probe no --payload fp8 \
        --routing zipf:1.2,hot:0.9,even+absent:0.1+repeated:0.1
fi

# Few tokens packed by expert, in graphs, by each way.
if wants low-latency; then
    for way in per-rank per-rank-late per-expert; do
        bench 60 low-latency.jsonl --low-latency "$way" --graph 20 --set experts=288 --tokens 8,32,128 \
            --mode loop --probe no
    done
fi

# Half of the GPUs as a node each, over cards that are kernels.
if wants nodes && [ "$((gpus % 2))" -eq 0 ]; then
    for way in "--sms 24" "--low-latency per-rank --graph 20 --tokens 1,8,32,128 --payload fp8"; do
        # shellcheck disable=SC2086 # A word for each option.
        step 90 nodes.jsonl "$program" bench --json --ranks "$gpus" --nodes 2 --mode loop $way
    done
fi

# Few tokens by their number, within 150 s, the most telling numbers first. Two ranks have a GPU each, or share
# the only one as threads: then nothing goes over a wire, and what is left is the kernels. Processes that share a
# GPU would take turns on it.
if wants sweep; then
    # shellcheck disable=SC2086 # No word at all without several GPUs.
    step 145 decode.jsonl "$program" bench --json $processes --ranks 2 --graph 40 --iterations 200 \
        --set experts=288 --sms 24 --mode loop --probe no --op dispatch,combine,both \
        --tokens 8,32,128,512,1,2,4,16,64,256
fi

# Pipelines that EPForge does not ship, of examples and tests, with many rows and with few.
if wants own; then
    here=$(cd "$(dirname "$0")/.." && pwd)
    # own NAME FILE WORDS..: one of them; % stands for the number of rows
    own() {
        name=$1 declarations=$here/$2
        shift 2
        for rows in 128 4096; do
            # shellcheck disable=SC2046,SC2086 # A word for each option, and no word at all without several GPUs.
            step 30 own.jsonl "$program" bench "$name" --declarations "$declarations" --json $processes --ranks "$gpus" \
                --sms 24,48 --probe no --tokens "$rows" $(echo "$@" | sed "s/%/$rows/")
        done
    }
    own all-gather tests/it/from_docs/all_gather.rs --set hidden=7168 --set most=%
    own heads-for-tokens tests/it/from_docs/ulysses.rs --set head_bytes=4096
    own reduce-scatter tests/it/from_docs/reduce_scatter.rs --set hidden=7168 --set rows=%
    own all-gather-sum ep-runtime/examples/all_gather_sum.rs --set hidden=7168 --set rows=%
    own adapter-dispatch ep-runtime/examples/two_payloads.rs --set hidden=7168
    own wide-field tests/it/from_docs/two_payloads.rs --set hidden=7168
    own tagged-dispatch ep-runtime/examples/own_pipeline/src/lib.rs --set hidden=7168
fi

# sanitize TOOL RANKS: all calls of a small problem, with waits that may last 100 times as long. The
# rates that the tool slows down are kept apart, and so are the ranks, which it may not run side by side.
sanitize() {
    step 180 sanitizers.txt env EPFORGE_CACHE="$cache" \
        compute-sanitizer --tool "$1" --report-api-errors no --target-processes all --error-exitcode 1 \
        "$program" bench --ranks "$2" --processes --tokens 64 --set hidden=1024 --iterations 0 \
        --probe no --timeout-ms 500000
}
if wants sanitizers && command -v compute-sanitizer >/dev/null; then
    cache=$(mktemp -d)
    for ranks in 1 2 4; do
        [ "$ranks" -le "$gpus" ] || continue
        sanitize memcheck "$ranks"
        sanitize racecheck "$ranks"
    done
    rm -r "$cache"
fi
exit $failed
