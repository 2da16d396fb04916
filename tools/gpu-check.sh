#!/usr/bin/env bash
# On a machine with a GPU: the tests that need one, compute-sanitizer on a small set, and the benchmarks, in one call.
#
#   tools/gpu-check.sh collect FOLDER     builds everything here and gathers it, stripped, in FOLDER
#   FOLDER/gpu-check.sh [PART...]         runs it there; no compiler is needed. Parts: device text cache sanitizer demo
#                                         scan documents figures two; the last three only by name
#
# Figures are appended to $OUT/<date>-<device>.jsonl (OUT defaults to the folder). NAMES may name a file of package names.
set -euo pipefail

collect() {
    local folder=$1 root
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    cd "$root"
    mkdir -p "$folder"
    # One call for all: packages by themselves would be built again, each with features of their own.
    local built
    built=$(cargo test --release --locked --workspace --no-run --bins --test cuda --test cuda_fault --test model \
        --test values --test storm --bench scan --message-format json)
    local target=${CARGO_TARGET_DIR:-$root/target}
    strip -o "$folder/forebay" "$target/release/forebay"
    # `name=crate:target`; cargo has said where it put each binary.
    local wanted=(test-device=device:cuda test-device-fault=device:cuda_fault test-text=text-gpu:cuda
        test-model=documents-cache:model test-values=documents-cache:values test-storm=documents-cache:storm bench-scan=text-gpu:scan)
    local entry
    for entry in "${wanted[@]}"; do
        local place=${entry#*=}
        strip -o "$folder/${entry%%=*}" "$(binary "${place%%:*}" "${place##*:}" <<<"$built")"
    done
    git rev-parse --short=12 HEAD >"$folder/commit"
    cp "${BASH_SOURCE[0]}" "$folder/gpu-check.sh"
    du -sh "$folder"
}

# Prints the path of a crate's test or benchmark, from what cargo said of all that it built.
binary() {
    python3 -c 'import json, sys
crate, target = sys.argv[1:]
built = [json.loads(line) for line in sys.stdin]
print([each["executable"] for each in built if each.get("executable") and each["target"]["name"] == target
       and f"/crates/{crate}/" in each["manifest_path"]][-1])' "$1" "$2"
}

part() {
    echo "== $1"
    case $1 in
    device) ./test-device --test-threads=1 && ./test-device-fault ;;
    text) ./test-text --test-threads=1 ;;
    cache)
        (
            export FOREBAY_TEST_DEVICES=cuda:0,host:1
            FOREBAY_TEST_SEEDS=40 ./test-model && ./test-values --test-threads=1 && ./test-storm
        )
        ;;
    sanitizer)
        FOREBAY_GPU_PAIRS=20000 compute-sanitizer --error-exitcode 9 ./test-text --test-threads=1 blocks_dead long_rows generated
        ;;
    demo) ./forebay demo --once --memory --devices auto ${GENERATED:+--generated "$GENERATED"} ;;
    scan) ./bench-scan ${NAMES:+--names "$NAMES"} --record "$record" ;;
    documents) ./forebay bench documents --cuda --rows "${ROWS:-100000000}" --record "$record" ;;
    figures) ./forebay bench documents --figure "${FIGURES:-all}" --devices "${DEVICES:-cuda:0}" --rows "${ROWS:-100000000}" \
        --record "$record" ;;
    two)
        FOREBAY_TEST_DEVICES=cuda:0,cuda:1 ./test-storm &&
            ./bench-scan --only none --device cuda:0,cuda:1 --record "$record"
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
device=$(nvidia-smi --query-gpu=name --format=csv,noheader --id=0 | tr 'A-Z ' 'a-z-' | sed 's/nvidia-//')
record=${OUT:-$PWD}/$(date -u +%F)-$device.jsonl
failed=()
parts=("$@")
((${#parts[@]})) || parts=(device text cache sanitizer demo scan)
for name in "${parts[@]}"; do
    part "$name" || failed+=("$name")
done
if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
echo "all passed: ${parts[*]}"
