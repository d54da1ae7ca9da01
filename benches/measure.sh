#!/bin/sh
# Measures and tests on the GPUs of this machine, all of them, and leaves what it finds in a folder, in
# at most 8 files. docs/measuring.md says what each command is for.
#
#   benches/measure.sh FOLDER [PROGRAM [tests|times]]
#
# PROGRAM is `epforge`, built with `cargo build --release -p ep-cli`; nothing else of this repository is
# needed where it runs, but NVRTC has to be found there (`epforge doctor`). Ends with 1 if a command
# failed; the others have run all the same.
set -u

folder=${1:?usage: measure.sh FOLDER [PROGRAM [tests|times]]}
program=${2:-target/release/epforge}
part=${3:-all}
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
failed=0
mkdir -p "$folder"

# step SECONDS FILE WORDS..: one command, its results in FILE, what else it says in errors.txt
step() {
    seconds=$1 file=$2
    shift 2
    echo "== epforge $*" | tee -a "$folder/errors.txt"
    EP_REQUIRE_GPUS=$gpus timeout "$seconds" "$program" "$@" \
        >>"$folder/$file" 2>>"$folder/errors.txt" || {
        echo "== failed with $?" | tee -a "$folder/errors.txt"
        failed=1
    }
}

if [ "$gpus" -eq 0 ]; then
    echo "there is no GPU" >&2
    exit 1
fi
{
    nvidia-smi
    nvidia-smi topo -m
} >"$folder/machine.txt" 2>&1
step 60 machine.txt doctor
[ "$part" = times ] || step 540 selftest.txt selftest

processes=
[ "$gpus" -gt 1 ] && processes=--processes
[ "$part" = tests ] || {
    # shellcheck disable=SC2086 # No word at all without several GPUs.
    {
        step 240 target.jsonl bench --json $processes --ranks "$gpus" --sms 8,12,16,24
        step 90 small.jsonl bench --json $processes --ranks "$gpus" --tokens 128 --sms 8,16,24
        step 90 others.jsonl bench --json $processes --ranks "$gpus" --set via=ring --sms 24
        for remote in 6 7 9 10; do
            step 45 others.jsonl bench --json $processes --ranks "$gpus" --payload bf16 \
                --op cached-dispatch --mode loop --sms 16 --remote $remote --probe no
        done
    }
    if [ "$gpus" -gt 2 ]; then
        step 90 two.jsonl bench --json --processes --ranks 2 --sms 8,16,24
    fi
    step 20 errors.txt bench --draw "$folder/target.jsonl" --chart "$folder/target.svg"
}
exit $failed
