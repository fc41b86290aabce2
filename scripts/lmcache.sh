#!/usr/bin/env bash
# lmcache.sh vllm|sglang: LMCache beside that real engine, into .cache/ENGINE/lmcache and not into the engine's environment; exactly the files of the engine's
# lmcache.txt, by hash. For plans of bench/eval that have an arm "lmcache", and for itest/sglang/lmcache.py. Its wheel is built for CUDA and works without, on plain memory.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:-}
case $engine in vllm | sglang) ;; *) echo "usage: lmcache.sh vllm|sglang" >&2 && exit 2 ;; esac
"scripts/$engine/install.sh"
dir=$(cd ".cache/$engine" && pwd -P)
want=$(sha256sum <"scripts/$engine/lmcache.txt")
[[ $(cat "$dir/lmcache/installed" 2>/dev/null) == "$want" ]] && exit 0
rm -rf "$dir/lmcache"
UV_CACHE_DIR=$dir/uv VIRTUAL_ENV=$dir/venv "$dir/venv/bin/uv" pip install --quiet --no-deps --require-hashes --target "$dir/lmcache" -r "scripts/$engine/lmcache.txt"
rm -rf "$dir/uv"
echo "$want" >"$dir/lmcache/installed"
