#!/usr/bin/env bash
# Prints the Go files of the work tree that git knows or would add, one a line: what formatting covers.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files -co --exclude-standard -- '*.go' | sort -u | while IFS= read -r f; do
	if [[ -f $f ]]; then echo "$f"; fi
done
