#!/usr/bin/env bash
# serve.sh: one real SGLang engine on the CPU, in the foreground. Prints "ready URL" once it answers, and ends it, with all of its processes,
# on SIGTERM, SIGINT or SIGHUP. Exit code: 0 stopped on request, 1 it did not start, or ended by itself.
#
#   serve.sh --port 8001 [--name a] [--events-port 5601 --replay-port 5701] [--tokens N] [--page N] [--model DIR] [--served-name NAME]
#            [-- ARGUMENTS OF sglang.launch_server]
#
# --tokens is the device pool's size. Its log is .cache/sglang/log/NAME.log; the id of its process group is in NAME.pgid beside it as long as it runs.
# PYTHONPATH is handed on: modules that the engine is to load lie there.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/engine.sh
dir=$PWD/.cache/sglang
name=engine port='' events='' replay='' tokens=16384 page=16 model=$dir/model served=tiny
# Ready takes some 40 seconds of a processor: several minutes on two cores that others want too.
start_s=${ENGINE_START_S:-600}
stop_s=30

usage() {
	sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
while (($#)); do
	case $1 in
	--) shift; break ;;
	--name) name=${2:?} ;;
	--port) port=${2:?} ;;
	--events-port) events=${2:?} ;;
	--replay-port) replay=${2:?} ;;
	--tokens) tokens=${2:?} ;;
	--page) page=${2:?} ;;
	--model) model=${2:?} ;;
	--served-name) served=${2:?} ;;
	*) usage ;;
	esac
	shift 2
done
[[ -n $port ]] || usage
[[ -s $dir/installed ]] || { echo "SGLang is not installed: run scripts/sglang/install.sh" >&2; exit 1; }
[[ -s $model/config.json ]] || { echo "no model in $model: run scripts/vllm/model.py" >&2; exit 1; }

# mem-fraction-static: so much that the engine does not refuse when other programs take memory while it loads; --tokens is what the pool really gets.
args=(--model-path "$model" --served-model-name "$served" --host 127.0.0.1 --port "$port" --device cpu --attention-backend torch_native --disable-cuda-graph
	--grammar-backend none --skip-server-warmup --dtype float32 --page-size "$page" --max-total-tokens "$tokens" --mem-fraction-static 0.6
	# What the qualification reads: where cached tokens came from.
	--enable-cache-report)
if [[ -n $events ]]; then
	args+=(--kv-events-config "{\"publisher\":\"zmq\",\"topic\":\"kv\",\"endpoint\":\"tcp://*:$events\"${replay:+,\"replay_endpoint\":\"tcp://*:$replay\"}}")
fi
export SGLANG_ON_CPU=1 SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONUNBUFFERED=1
export PATH=$dir/venv/bin:$PATH TORCH_EXTENSIONS_DIR=$dir/extensions
unset PYTHONDONTWRITEBYTECODE # without what it writes, each of the three processes compiles every module at each start

# -P: the current directory is no place for modules.
run_engine "$dir/venv/bin/python" -P -W ignore -m sglang.launch_server "${args[@]}" "$@"
