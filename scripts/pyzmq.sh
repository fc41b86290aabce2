#!/usr/bin/env bash
# pyzmq.sh: a Python with libzmq in .cache/pyzmq, which the tests of internal/zmtp talk to. What is there already is not fetched again.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=.cache/pyzmq
want=internal/zmtp/testdata/requirements.txt

cmp -s "$want" "$dir/installed" && exit 0
if ! command -v python3 >/dev/null; then
	echo "python3 is missing: the tests against libzmq need it once (Debian: apt-get install python3-venv)" >&2
	exit 1
fi
rm -rf "$dir"
mkdir -p .cache
python3 -m venv "$dir"
scripts/again.sh "$dir/bin/pip" install --quiet --disable-pip-version-check -r "$want"
cp "$want" "$dir/installed"
