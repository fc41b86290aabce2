#!/usr/bin/env bash
# serve.sh: one real vLLM engine on the CPU, in the foreground. Prints "ready URL" once it answers, and ends it, with all of its processes,
# on SIGTERM, SIGINT or SIGHUP. Exit code: 0 stopped on request, 1 it did not start, or ended by itself.
#
#   serve.sh --port 8001 [--name a] [--events-port 5601 --replay-port 5701] [--space GiB] [--blocks N] [--block-size N] [--cpus LIST]
#            [--model DIR] [--served-name NAME] [--max-len TOKENS] [--dev] [-- ARGUMENTS OF vllm serve]
#
# --blocks makes the KV cache smaller than --space, so that it evicts. --cpus binds the worker's threads (0, 0-1): with one
# core each, two engines on two cores do not wait for each other's threads. --dev serves /reset_prefix_cache and its like. Its log is .cache/vllm/log/NAME.log; the id of
# its process group is in NAME.pgid beside it as long as it runs.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/engine.sh
dir=$PWD/.cache/vllm
name=engine port='' events='' replay='' space=1 blocks='' block=32 cpus=auto model=$dir/model served=tiny max=8192 dev=0
# Ready takes some 40 seconds of a processor: three minutes on two cores that ten other programs wanted too.
start_s=${ENGINE_START_S:-600}
stop_s=20

usage() {
	sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
while (($#)); do
	case $1 in
	--) shift; break ;;
	--dev) dev=1; shift; continue ;;
	--name) name=${2:?} ;;
	--port) port=${2:?} ;;
	--events-port) events=${2:?} ;;
	--replay-port) replay=${2:?} ;;
	--space) space=${2:?} ;;
	--blocks) blocks=${2:?} ;;
	--block-size) block=${2:?} ;;
	--cpus) cpus=${2:?} ;;
	--model) model=${2:?} ;;
	--served-name) served=${2:?} ;;
	--max-len) max=${2:?} ;;
	*) usage ;;
	esac
	shift 2
done
[[ -n $port ]] || usage
[[ -s $dir/installed ]] || { echo "vLLM is not installed: run scripts/vllm/install.sh" >&2; exit 1; }
[[ -s $model/made.json || -s $model/config.json ]] || { echo "no model in $model: run scripts/vllm/model.py" >&2; exit 1; }

args=(serve "$model" --served-model-name "$served" --host 127.0.0.1 --port "$port" --max-model-len "$max" --max-num-seqs 8
	# float32 has fast kernels on every x86-64; bfloat16 only with AVX-512, and is several times slower elsewhere.
	--dtype float32 --enforce-eager --block-size "$block"
	# What the qualification reads: cached_tokens in the usage, and a hash that is the same in each process.
	--enable-prefix-caching --prefix-caching-hash-algo sha256_cbor --enable-prompt-tokens-details)
[[ -z $blocks ]] || args+=(--num-gpu-blocks-override "$blocks")
if [[ -n $events ]]; then
	# With the asterisk the engine binds, as the gateway expects; an address without one it would connect to.
	args+=(--kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"topic\":\"kv\",\"endpoint\":\"tcp://*:$events\"${replay:+,\"replay_endpoint\":\"tcp://*:$replay\"}}")
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CACHE_ROOT=$dir/cache VLLM_CONFIG_ROOT=$dir/config # instead of ~/.cache/vllm: nothing is left outside of the repository
export VLLM_CPU_KVCACHE_SPACE=$space VLLM_CPU_OMP_THREADS_BIND=$cpus VLLM_SERVER_DEV_MODE=$dev
unset PYTHONDONTWRITEBYTECODE # without what it writes, each of the four processes compiles every module at each start

run_engine "$dir/venv/bin/vllm" "${args[@]}" "$@"
