#!/usr/bin/env bash
# Builds bin/perigee and proves that it is static: it must run in an image that holds nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
CGO_ENABLED=0 go build -trimpath -o bin/perigee ./cmd/perigee
if [[ $(go env GOOS) == linux ]]; then
	go run ./internal/house/isstatic bin/perigee
fi
