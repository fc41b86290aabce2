#!/usr/bin/env bash
# Builds the tools of tools/go.mod into .cache/bin. They have a module of their own, so that what they need never
# reaches the product's module graph.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/bin
out=$PWD/.cache/bin
cd tools
go build -o "$out/" $(go list tool)
