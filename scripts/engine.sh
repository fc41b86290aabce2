# Sourced by scripts/vllm/serve.sh and scripts/sglang/serve.sh, which set dir (of the engine's family), name, port, start_s (how long it may take to be
# ready) and stop_s (to end), and then call run_engine.
# shellcheck shell=bash disable=SC2154

# run_engine COMMAND...: an engine in the foreground. Prints "ready URL SECONDS s" once it answers. On SIGTERM, SIGINT or SIGHUP it ends it, with all of
# its processes, and exits with 0; when the engine ends by itself or is not ready in time, with 1. Its log is $dir/log/$name.log; the id of its process
# group is in $name.pgid beside it as long as it runs.
run_engine() {
	local log=$dir/log/$name.log url=http://127.0.0.1:$port begin=$SECONDS
	group=
	mkdir -p "$dir/log"
	trap 'end_engine 0' TERM INT HUP
	trap 'end_engine 1' EXIT
	# A session, and so a process group, of its own. setpriv: should this script be killed outright, the engine is told to end.
	setsid setpriv --pdeathsig TERM "$@" >"$log" 2>&1 </dev/null &
	group=$!
	echo "$group" >"$dir/log/$name.pgid"
	until curl -sf -o /dev/null --max-time 5 "$url/health"; do
		if ! kill -0 "$group" 2>/dev/null; then
			tail -n 20 "$log" >&2
			echo "$name ended before it was ready: $log" >&2
			exit 1
		fi
		if ((SECONDS - begin > start_s)); then
			tail -n 5 "$log" >&2
			echo "$name was not ready within $start_s s: $log" >&2
			exit 1
		fi
		sleep 0.2
	done
	kill -0 "$group" 2>/dev/null || exit 1 # something else answered at that port
	echo "ready $url $((SECONDS - begin)) s"
	wait "$group" || true
	echo "$name ended by itself" >&2
	exit 1
}

# end_engine STATUS: SIGTERM to the engine's first process, which ends the others; then SIGKILL to whatever is left of its group.
end_engine() {
	trap '' TERM INT HUP
	trap - EXIT
	if [[ -n $group ]]; then
		kill -TERM "$group" 2>/dev/null || true
		for ((i = 0; i < stop_s * 10; i++)); do
			kill -0 -- "-$group" 2>/dev/null || break
			sleep 0.1
		done
		kill -KILL -- "-$group" 2>/dev/null || true
		wait "$group" 2>/dev/null || true
		rm -f "$dir/log/$name.pgid"
	fi
	exit "$1"
}
