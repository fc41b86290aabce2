#!/usr/bin/env bash
# qualify.sh: installs what is missing, then runs itest/vllm/qualify.py: perigee serve before two real vLLM engines on this machine's CPU.
# Takes 3 GB of disk and 6 GB of memory. Its engines are ended whatever happens. Arguments go to the checks: qualify.sh -k Leaving
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=.cache/vllm
[[ -x bin/perigee ]] || scripts/build.sh
scripts/vllm/install.sh
[[ -s .cache/tokenizers/qwen3.json ]] || scripts/tokenizers.sh
"$dir/venv/bin/python" scripts/vllm/model.py "$dir/model"

# Should the checks themselves be killed, their engines would stay.
sweep() {
	local f group
	for f in "$dir"/log/qualify-*.pgid; do
		[[ -s $f ]] || continue
		group=$(<"$f")
		# An id that another process has by now is left alone.
		if [[ $(ps -o args= -p "$group" 2>/dev/null) == *"$dir/venv/bin/vllm serve"* ]]; then
			kill -KILL -- "-$group" 2>/dev/null || true
		fi
		rm -f "$f"
	done
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
rm -f "$dir"/log/qualify-*
# The client is the one that came along with vLLM.
if ! nice -n 5 "$dir/venv/bin/python" itest/vllm/qualify.py "$@"; then
	for log in "$dir"/log/qualify-*.err; do
		echo "--- the end of $log" >&2
		tail -n 20 "$log" | cut -c 1-400 >&2
	done
	exit 1
fi
