#!/usr/bin/env bash
# Fails when `go generate` changes any file. It compares contents before and after, not with git, so it also works in
# a tree with uncommitted edits.
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
sums() {
	git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do
		if [[ -f $f ]]; then printf '%s\0' "$f"; fi
	done | xargs -0 sha256sum | sort -u -k 2
}
sums >"$tmp/before"
go generate ./...
sums >"$tmp/after"
if ! diff "$tmp/before" "$tmp/after" >"$tmp/diff"; then
	echo "go generate changed these files; look at them and commit them:"
	sed -nE 's/^[<>] [0-9a-f]{64} [ *]/  /p' "$tmp/diff" | sort -u
	exit 1
fi
