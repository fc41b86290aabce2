#!/usr/bin/env bash
# qualify.sh [ARGUMENTS]: installs what is missing, then runs the checks of the backend for SGLang with a real engine on this machine's CPU: first
# python/tests/sglang_check.py and itest/sglang/pools_check.py, which need none, then itest/sglang/qualify.py. Takes 6 GB of disk and 6 GB of memory. Its
# engines are ended whatever happens. Arguments go to the last one: qualify.sh -k Restored
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=.cache/sglang
[[ -x bin/perigee ]] || scripts/build.sh
scripts/sglang/install.sh
scripts/vllm/install.sh # one of the checks has both engines on one Manager
[[ -s .cache/tokenizers/qwen3.json ]] || scripts/tokenizers.sh
"$dir/venv/bin/python" scripts/vllm/model.py "$dir/model"
"$dir/venv/bin/python" scripts/vllm/model.py .cache/vllm/model # the same, where vLLM's script looks

# Should the checks themselves be killed, their engines would stay.
sweep() {
	local f group
	for f in "$dir"/log/qualify-*.pgid; do
		[[ -s $f ]] || continue
		group=$(<"$f")
		# An id that another process has by now is left alone.
		if [[ $(ps -o args= -p "$group" 2>/dev/null) == *"$dir/venv/bin/python"*sglang.launch_server* ]]; then
			kill -KILL -- "-$group" 2>/dev/null || true
		fi
		rm -f "$f"
	done
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
rm -f "$dir"/log/qualify-*
python3 -I -B python/tests/sglang_check.py
# Where serve.sh has it: what SGLang compiles when it hashes its first pages is then there before an engine needs it. An engine that is told to flush its caches while it
# compiles ends after ten seconds.
export TORCH_EXTENSIONS_DIR=$PWD/$dir/extensions
nice -n 5 "$dir/venv/bin/python" -B itest/sglang/pools_check.py bin/perigee
if ! nice -n 5 "$dir/venv/bin/python" -B itest/sglang/qualify.py "$@"; then
	for log in "$dir"/log/qualify-*.err; do
		echo "--- the end of $log" >&2
		tail -n 20 "$log" | cut -c 1-400 >&2
	done
	exit 1
fi
