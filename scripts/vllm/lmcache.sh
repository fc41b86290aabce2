#!/usr/bin/env bash
# lmcache.sh: LMCache beside the real vLLM, into .cache/vllm/lmcache and not into its environment; exactly the files of lmcache.txt, by hash. For plans of bench/eval that
# have an arm "lmcache". Its wheel is built for CUDA and works without, on plain memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/vllm/install.sh
dir=$(cd .cache/vllm && pwd -P)
want=$(sha256sum <scripts/vllm/lmcache.txt)
[[ $(cat "$dir/lmcache/installed" 2>/dev/null) == "$want" ]] && exit 0
rm -rf "$dir/lmcache"
UV_CACHE_DIR=$dir/uv VIRTUAL_ENV=$dir/venv "$dir/venv/bin/uv" pip install --quiet --no-deps --require-hashes --target "$dir/lmcache" -r scripts/vllm/lmcache.txt
rm -rf "$dir/uv"
echo "$want" >"$dir/lmcache/installed"
