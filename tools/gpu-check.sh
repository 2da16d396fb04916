#!/usr/bin/env bash
# Runs on a machine with a GPU, in one call: the tests that need a GPU, compute-sanitizer on the same code, and the
# benchmarks.
#
#   tools/gpu-check.sh collect FOLDER     builds all binaries on this machine and copies them, stripped, to FOLDER
#   FOLDER/gpu-check.sh [PART...]         runs them on the GPU machine, without a compiler. Parts: device movement text
#                                         cache tables hash-index memcheck racecheck initcheck demo scan policy smoke
#                                         transfer q6 joins q6-disk io documents figures two. Those after scan run only
#                                         if named.
#                                         sanitizer means memcheck racecheck initcheck
#
# Appends figures to <date>-<device>.jsonl in the folder, and for each check a line with outcome, device and commit to
# <date>-<device>-checks.jsonl. Copies both to $OUT, if it is set; they belong in bench/record/. The commands in them
# name no path of the machine. NAMES may name a file of package names.
set -euo pipefail

collect() {
    local folder=$1 root
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    cd "$root"
    mkdir -p "$folder"
    # The tests' call builds the program only as a test.
    cargo build --release --locked --workspace
    # A single call, because crates built alone would be rebuilt with different features.
    local built
    built=$(cargo test --release --locked --workspace --no-run --bins --test cuda --test cuda_fault --test model \
        --test values --test storm --test ring --test methods --test measure --test storage --lib --bench scan --bench policy \
        --message-format json)
    local target=${CARGO_TARGET_DIR:-$root/target}
    strip -o "$folder/forebay" "$target/release/forebay"
    # Entries `name=crate:target`; cargo's messages name the path of each binary.
    local wanted=(test-device=device:cuda test-device-fault=device:cuda_fault test-text=text-gpu:cuda
        test-model=documents-cache:model test-values=documents-cache:values test-storm=documents-cache:storm bench-scan=text-gpu:scan
        bench-policy=text-gpu:policy test-ring=movement:ring test-methods=movement:methods test-measure=movement:measure
        test-storage=movement:storage test-tables=tables-gpu:forebay_tables_gpu
        test-hash-index=hash-index:forebay_hash_index test-joins=joins:forebay_joins)
    local entry
    for entry in "${wanted[@]}"; do
        local place=${entry#*=}
        strip -o "$folder/${entry%%=*}" "$(binary "${place%%:*}" "${place##*:}" <<<"$built")"
    done
    echo "$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo +)" >"$folder/commit"
    cp "${BASH_SOURCE[0]}" "$folder/gpu-check.sh"
    du -sh "$folder"
}

# Prints the path of a crate's test or benchmark, from cargo's messages on standard input.
binary() {
    python3 -c 'import json, sys
crate, target = sys.argv[1:]
built = [json.loads(line) for line in sys.stdin]
print([each["executable"] for each in built if each.get("executable") and each["target"]["name"] == target
       and f"/crates/{crate}/" in each["manifest_path"]][-1])' "$1" "$2"
}

# Runs a command and appends its outcome to the record of checks. The command must not contain quotation marks.
check() {
    local name=$1 began=$SECONDS outcome=passed
    shift
    echo "-- $name: $*"
    "$@" || outcome=failed
    printf '{"check":"%s","outcome":"%s","seconds":%d,"device":"%s","driver":"%s","commit":"%s","date":"%s","command":"%s"}\n' \
        "$name" "$outcome" $((SECONDS - began)) "$gpu" "$driver" "$FOREBAY_COMMIT" "$(date -u +%FT%TZ)" "$*" >>"$checks"
    [[ $outcome == passed ]]
}

# Runs a tool of compute-sanitizer on device, text-gpu, tables-gpu and the cache; runs all even if one fails. Skips the
# tests of lost devices, whose faults are intended. Ignores errors that the driver returns, which the tests check
# themselves.
sanitize() {
    local tool=$1 all_passed=true
    local run=(compute-sanitizer --tool "$tool" --error-exitcode 9 --report-api-errors no) text=()
    # Under initcheck this test did not end in five minutes on an H100, not even with empty blocks.
    [[ $tool != initcheck ]] || text=(--skip searches_that_share_a_pass)
    check "$tool-device" "${run[@]}" ./test-device --test-threads=1 --skip lost --skip loses --skip loss \
        --skip fail_or_panic || all_passed=false
    check "$tool-ring" "${run[@]}" ./test-ring --test-threads=1 --skip lost gpu:: || all_passed=false
    check "$tool-methods" "${run[@]}" ./test-methods --test-threads=1 || all_passed=false
    check "$tool-text" env FOREBAY_GPU_PAIRS="${PAIRS:-20000}" \
        FOREBAY_GPU_ROWS="${BLOCK_ROWS:-100000}" "${run[@]}" ./test-text --test-threads=1 "${text[@]}" || all_passed=false
    check "$tool-tables" "${run[@]}" ./test-tables a_gpu || all_passed=false
    check "$tool-hash-index" "${run[@]}" ./test-hash-index a_gpu_agrees || all_passed=false
    check "$tool-joins" "${run[@]}" ./test-joins a_gpu --test-threads=1 || all_passed=false
    check "$tool-cache" env FOREBAY_TEST_DEVICES=cuda:0,host:1 FOREBAY_TEST_SEEDS="${SEEDS:-2}" "${run[@]}" ./test-model \
        --test-threads=1 || all_passed=false
    $all_passed
}

part() {
    local cache=(env "FOREBAY_TEST_DEVICES=cuda:0,host:1")
    echo "== $1"
    case $1 in
    device) check device ./test-device --test-threads=1 && check device-fault ./test-device-fault ;;
    movement)
        check movement-ring ./test-ring --test-threads=1 &&
            check movement-methods ./test-methods --test-threads=1 &&
            check movement-measure ./test-measure --test-threads=1 &&
            check movement-storage ./test-storage --test-threads=1 &&
            ./forebay doctor --measure --data measured
        ;;
    text) check text ./test-text --test-threads=1 ;;
    cache)
        check cache-model "${cache[@]}" FOREBAY_TEST_SEEDS=40 ./test-model &&
            check cache-values "${cache[@]}" ./test-values --test-threads=1 &&
            check cache-storm "${cache[@]}" ./test-storm
        ;;
    tables) check tables ./test-tables a_gpu ;;
    hash-index) check hash-index ./test-hash-index a_gpu --test-threads=1 && check joins ./test-joins gpu ;;
    memcheck | racecheck | initcheck) sanitize "$1" ;;
    sanitizer)
        local all_passed=true tool
        for tool in memcheck racecheck initcheck; do
            sanitize "$tool" || all_passed=false
        done
        $all_passed
        ;;
    demo) ./forebay demo --once --memory --devices auto ${GENERATED:+--generated "$GENERATED"} ;;
    scan) ./bench-scan ${NAMES:+--names "$NAMES"} --record "$record" ;;
    policy) ./bench-policy --record "$record" ;;
    smoke)
        check smoke-transfer ./forebay bench transfer --smoke --only cpu,reads,methods,both &&
            check smoke-q6 ./forebay bench q6 --smoke --folder smoke-q6 --zero-copy-blocks 1,8 &&
            check smoke-joins ./forebay bench joins --smoke &&
            check smoke-io ./forebay bench io --smoke --folder smoke-io
        ;;
    transfer)
        ./forebay bench transfer --only cpu,reads --record "$record"
        ./forebay bench transfer --only methods,both --chunk-bytes "${CHUNKS:-64K,1M,16M,256M,1G}" \
            --record "$record" --plot transfer
        ./forebay bench transfer --only methods,both --methods pinned-copy,zero-copy,zero-copy-bulk --bytes 4G \
            --chunk-bytes 16M,256M,1G --rounds "${ROUNDS:-9}" --record "$record"
        ;;
    q6)
        ./forebay bench q6 --scale-factor "${SCALE:-100}" --folder "${MEMORY_FOLDER:-/dev/shm/q6}" \
            --only pinned,methods,device,zero-copy,ring --buffer-bytes 1M,8M,64M --record "$record"
        ;;
    joins)
        ./forebay bench joins --scale "${JOIN_SCALE:-1}" --only "${JOIN_SECTIONS:-device,pinned}" \
            --rounds "${ROUNDS:-5}" --record "$record"
        ;;
    q6-disk)
        ./forebay bench q6 --scale-factor "${DISK_SCALE:-10}" --folder "${FOLDER:-q6}" --rounds "${ROUNDS:-3}" \
            --only dd,serial,cpu,staged,direct --buffer-bytes "${BUFFERS:-64K,1M,8M,64M}" \
            --record "$record" --plot q6-plots
        ;;
    io)
        ./forebay bench io --folder "${FOLDER:-io}" --seconds "${SECONDS_EACH:-0.5}" --record "$record" --plot io-plots
        ;;
    documents) ./forebay bench documents --cuda --rows "${ROWS:-100000000}" --record "$record" ;;
    figures) ./forebay bench documents --figure "${FIGURES:-all}" --devices "${DEVICES:-cuda:0}" --rows "${ROWS:-100000000}" \
        --record "$record" ;;
    two)
        check two-storm env FOREBAY_TEST_DEVICES=cuda:0,cuda:1 ./test-storm && check two-joins ./test-joins gpus &&
            ./forebay bench joins --only gpus --scale "${JOIN_SCALE:-1}" --rounds "${ROUNDS:-5}" --record "$record" &&
            ./bench-scan --only none --device cuda:0,cuda:1 --record "$record" &&
            ./forebay bench transfer --devices cuda:0,cuda:1 --only reads,peers --record "$record"
        ;;
    *) echo "no such part: $1" >&2 && return 2 ;;
    esac
}

if [[ ${1-} == collect ]]; then
    collect "${2:?a folder}"
    exit
fi
cd "$(dirname "${BASH_SOURCE[0]}")"
export FOREBAY_REQUIRE_GPU=1 FOREBAY_COMMIT=${FOREBAY_COMMIT:-$(cat commit)}
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader --id=0)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader --id=0)
device=$(tr 'A-Z ' 'a-z-' <<<"$gpu" | sed 's/nvidia-//')
record=$(date -u +%F)-$device.jsonl
checks=${record%.jsonl}-checks.jsonl
touch "$record" "$checks"
[[ -z ${OUT-} ]] || trap 'cp "$record" "$checks" "$OUT"' EXIT
failed=()
parts=("$@")
((${#parts[@]})) || parts=(device movement text cache tables hash-index sanitizer demo scan)
for name in "${parts[@]}"; do
    part "$name" || failed+=("$name")
done
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all passed: ${parts[*]}"
