#!/usr/bin/env bash
# Runs itest/openai_client_test.py with the pinned openai package, in a virtual environment of its own under .cache/.
# Needs bin/perigee (make build), Python 3.11 or newer, curl, and the package registry for the first run.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.cache/venv
req=itest/requirements.txt
[[ -x bin/perigee ]] || scripts/build.sh

# The stamp is written last, so that a run which was cut off is done again.
if ! cmp -s "$req" "$venv/installed.txt"; then
	rm -rf "$venv"
	mkdir -p .cache
	if ! python3 -m venv "$venv"; then
		echo "python3 -m venv failed: install Python 3.11 or newer with its venv module (Debian: apt-get install python3-venv)" >&2
		exit 1
	fi
	if ! scripts/again.sh "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$req"; then
		echo "pip could not install $req: this test needs the Python package registry once; it is not skipped without" >&2
		exit 1
	fi
	cp "$req" "$venv/installed.txt"
fi
rm -rf .cache/itest
if ! "$venv/bin/python" itest/openai_client_test.py --verbose; then
	for log in .cache/itest/*.log; do
		echo "--- the end of $log" >&2
		tail -n 20 "$log" | cut -c 1-400 >&2
	done
	exit 1
fi
