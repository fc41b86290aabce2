#!/usr/bin/env bash
# lmcache.sh: LMCache beside the real SGLang, into .cache/sglang/lmcache and not into its environment; exactly the files of lmcache.txt, by hash. For
# itest/sglang/lmcache.py. Its wheel is built for CUDA and works without, on plain memory.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/sglang/install.sh
dir=$(cd .cache/sglang && pwd -P)
want=$(sha256sum <scripts/sglang/lmcache.txt)
[[ $(cat "$dir/lmcache/installed" 2>/dev/null) == "$want" ]] && exit 0
rm -rf "$dir/lmcache"
UV_CACHE_DIR=$dir/uv VIRTUAL_ENV=$dir/venv "$dir/venv/bin/uv" pip install --quiet --no-deps --require-hashes --target "$dir/lmcache" -r scripts/sglang/lmcache.txt
rm -rf "$dir/uv"
echo "$want" >"$dir/lmcache/installed"
