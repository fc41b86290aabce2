#!/usr/bin/env bash
# qualify.sh [gateway|restore] [ARGUMENTS]: installs what is missing, then runs the checks with real vLLM engines on this machine's CPU: gateway is
# itest/vllm/qualify.py, perigee serve before two of them; restore is itest/vllm/restore.py, one with the Cache Manager; without a name it is both. Takes 3 GB
# of disk and 6 GB of memory. Its engines are ended whatever happens. Arguments go to the checks: qualify.sh gateway -k Leaving
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=.cache/vllm
declare -A script=([gateway]=qualify [restore]=restore) # and what its logs and engines are called
parts=(gateway restore)
case ${1:-} in gateway | restore) parts=("$1") && shift ;; esac
[[ -x bin/perigee ]] || scripts/build.sh
scripts/vllm/install.sh
[[ -s .cache/tokenizers/qwen3.json ]] || scripts/tokenizers.sh
"$dir/venv/bin/python" scripts/vllm/model.py "$dir/model"

# Should the checks themselves be killed, their engines would stay.
sweep() {
	local f group part
	for part in "${parts[@]}"; do for f in "$dir/log/${script[$part]}"-*.pgid; do
		[[ -s $f ]] || continue
		group=$(<"$f")
		# An id that another process has by now is left alone.
		if [[ $(ps -o args= -p "$group" 2>/dev/null) == *"$dir/venv/bin/vllm serve"* ]]; then
			kill -KILL -- "-$group" 2>/dev/null || true
		fi
		rm -f "$f"
	done; done
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# The client is the one that came along with vLLM.
for part in "${parts[@]}"; do
	rm -f "$dir/log/${script[$part]}"-*
	if [[ $part == restore ]]; then # what needs no engine first
		"$dir/venv/bin/python" -B python/tests/vllm_check.py
		"$dir/venv/bin/python" -B itest/vllm/pages_check.py
		"$dir/venv/bin/python" -B itest/vllm/facts_check.py
	fi
	if ! nice -n 5 "$dir/venv/bin/python" "itest/vllm/${script[$part]}.py" "$@"; then
		for log in "$dir/log/${script[$part]}"-*.err; do
			echo "--- the end of $log" >&2
			tail -n 20 "$log" | cut -c 1-400 >&2
		done
		exit 1
	fi
done
