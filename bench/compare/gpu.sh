#!/usr/bin/env bash
# One part of the comparison on a machine with a GPU, in less than eight minutes, without a network.
#
#     bash bench/compare/gpu.sh PART OUT WHEELS...
#
# OUT is a folder for the results. WHEELS are folders of wheels; one whose name ends in 09 holds safetensors 0.9,
# which gets a place of its own; a file ending in .tar.xz is unpacked beside the wheels. The machine has
# python3 with torch and numpy. Models are made under $COMPARE (/tmp/compare unless set) and used again by the
# next part. What each part does stands below.
set -euo pipefail
part=$1 out=$2
shift 2
base=${COMPARE:-/tmp/compare}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$base/site
mkdir -p "$base/site" "$base/site09" "$out"
[[ -e $base/installed ]] || {
    for from in "$@"; do
        case $from in
        *.tar.xz) xz -dc -T0 "$from" | tar -x -C "$base/site" ;;
        *09) python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$base/site09" "$from"/*.whl ;;
        # --upgrade: two folders may hold the same wheel.
        *) python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$base/site" "$from"/*.whl ;;
        esac
    done
    touch "$base/installed"
}

compare() { python3 bench/compare "$@"; }
# A part measures for at most so long; what it makes before takes one to two minutes for 8 GiB.
measure() { compare run --path "safetensors 0.9=$base/site09" --seconds "${SECONDS_OF_PART:-330}" --out "$out/$part.json" "$@" 2>&1 | tee "$out/$part.txt"; }
# Nothing is left to be written while something is measured.
model() { compare make "$@" && sync; }

case $part in
warm-best) # 8 GiB in 4 files, in the page cache: weightlift and the best way of everybody
    model "$base/large" --gib 8 --forms torch,flashpack
    measure --model "$base/large" --state warm --rounds 7 --loaders weightlift,best,io_depth=64,safetensors/default
    ;;
warm-default) # the same files: the default way of everybody, some of which read the disk all the same
    model "$base/large" --gib 8 --forms torch,flashpack
    measure --model "$base/large" --state warm --rounds 3 --later 1 --loaders weightlift/default,safetensors,safetensors\ 0.9/default,fastsafetensors/default,InstantTensor/default,Run:ai/default,KvikIO/default,FlashPack/default,torch/default
    ;;
cold) # 2 GiB in 4 files, not in the page cache: everybody, in both ways
    model "$base/cold" --gib 2 --forms torch,flashpack
    measure --model "$base/cold" --state cold --rounds 5 --loaders weightlift,safetensors,safetensors\ 0.9,fastsafetensors,InstantTensor,Run:ai,KvikIO,FlashPack,torch
    ;;
small) # 100,000 tensors of 4 KiB in one file, in the page cache: everybody, in both ways
    model "$base/small" --small 100000 --size 4096 --forms torch,flashpack
    measure --model "$base/small" --state warm --rounds 5 --later 1 --loaders weightlift,safetensors,safetensors\ 0.9,fastsafetensors,InstantTensor,Run:ai,KvikIO,FlashPack,torch
    ;;
onnx) # 4 GiB in 4 files, in the page cache: ONNX Runtime's own loaders, from the same files
    model "$base/onnx" --gib 4 --forms onnx
    measure --model "$base/onnx" --state warm --rounds 5 --later 0 --loaders weightlift/default,ONNX\ Runtime
    ;;
*)
    echo "parts: warm-best, warm-default, cold, small, onnx" >&2
    exit 2
    ;;
esac
