#!/usr/bin/env bash
# tokenizer-golden.sh: writes the golden files of internal/gateway/tokens/bpe anew, by the reference implementation (the
# npm package tokenizers) on the models' own tokenizer.json files. A second run changes nothing; needed when a case, a
# tokenizer or the version of the reference changes. Takes about 3 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/tokenizers.sh --oracle
NODE_PATH=.cache/tokenizers/oracle/node_modules node scripts/tokenizers/golden.js .cache/tokenizers internal/gateway/tokens/bpe
