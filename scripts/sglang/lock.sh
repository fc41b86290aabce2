#!/usr/bin/env bash
# lock.sh: writes requirements.txt, the exact packages with their hashes that install.sh installs, from requirements.in and
# overrides.txt. Run it only to move to another version; then qualify, and commit both. Needs python3 and the package registry.
set -euo pipefail
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r ../vllm/uv.txt
"$tmp/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --format pylock.toml \
	--override overrides.txt requirements.in -o "$tmp/pylock.toml"
"$tmp/venv/bin/python" ../vllm/lock.py "$tmp/pylock.toml" sglang >"$tmp/requirements.txt"
mv "$tmp/requirements.txt" requirements.txt
