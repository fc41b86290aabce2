#!/usr/bin/env bash
# eval.sh [PLAN [NOTE]]: runs a plan of bench/eval/plans (vllm-cpu-small) with and without the Cache Manager, judges it, and writes bench/results/DATE-PLAN.json and .md.
# NOTE says what else ran on the machine. A plan that is not committed is run, and then every verdict is unknown. Exit code 3: a rule does not hold.
set -euo pipefail
cd "$(dirname "$0")/../.."
plan=bench/eval/plans/${1:-vllm-cpu-small}.json
dir=.cache/vllm
go build -o .cache/bin/eval ./bench/eval
sum=$(.cache/bin/eval check "$plan")
[[ -x bin/perigee ]] || scripts/build.sh
scripts/vllm/install.sh
[[ -s .cache/tokenizers/qwen3.json ]] || scripts/tokenizers.sh
"$dir/venv/bin/python" scripts/vllm/model.py "$dir/model"
mkdir -p bench/results "$dir/log"
run=$dir/log/eval-run.json
rm -f "$dir"/log/eval-* "$run"

# Should the driver be killed, its engines would stay.
sweep() {
	local f group
	for f in "$dir"/log/eval-*.pgid; do
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
"$dir/venv/bin/python" -B bench/eval/drive_vllm.py --sha256 "$sum" --note "${2:-}" "$plan" "$run"
.cache/bin/eval judge -plan "$plan" -run "$run" -out "bench/results/$(date -u +%F)-$(basename "$plan" .json)"
