#!/usr/bin/env bash
# routers.sh [FLAGS]: perigee beside three other routers, smg, vllm-router and sglang-router, at the versions of docs/performance.md. Installs them from PyPI into
# .cache/routers, an environment each (some 430 MiB, a minute or two), and runs bench-gateway with FLAGS. They contact loopback only.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$PWD/.cache/routers
for package in smg==1.13.0 vllm-router==0.1.17 sglang-router==0.3.2; do
	venv=$dir/${package%%==*}
	if [[ $(cat "$venv/installed" 2>/dev/null) != "$package" ]]; then
		rm -rf "$venv"
		python3 -m venv "$venv"
		"$venv/bin/pip" install -q --disable-pip-version-check "$package"
		echo "$package" >"$venv/installed"
	fi
done
# sglang-router asks a hub for a tokenizer otherwise.
export HF_ENDPOINT=http://127.0.0.1:1 HF_HUB_OFFLINE=1
scripts/build.sh
go build -o .cache/bin/bench-gateway ./bench/gateway
same='--host 127.0.0.1 --port {PORT} --worker-urls {ENGINES} --policy round_robin'
# Each has a port for metrics too, which would be the same for all.
exec .cache/bin/bench-gateway -perigee bin/perigee \
	-also "smg=$dir/smg/bin/smg launch $same --disable-tokenizer-autoload --history-backend none --prometheus-host 127.0.0.1 --prometheus-port 39001 --log-level warn" \
	-also "vllm-router=$dir/vllm-router/bin/vllm-router $same --prometheus-port 39002 --log-level warning" \
	-also "sglang-router=$dir/sglang-router/bin/sglang-router launch $same --history-backend none --prometheus-host 127.0.0.1 --prometheus-port 39003 --log-level warn" \
	"$@"
