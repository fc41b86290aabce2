#!/usr/bin/env bash
# again.sh COMMAND...: runs a command that fetches something, each time for ten minutes at most, and in CI (CI is set) up to four times with
# pauses of AGAIN_S (10) seconds and multiples of it: a registry that does not answer for a moment fails no run of all checks. Elsewhere once:
# whoever has no network wants to know at once. The command must bear being run again.
set -uo pipefail
tries=1 pause=${AGAIN_S:-10}
[[ -n ${CI:-} ]] && tries=4
for ((i = 1; ; i++)); do
	timeout -k 10 600 "$@" && exit 0
	rc=$?
	((i < tries)) || exit "$rc"
	echo "again.sh: exit code $rc, once more in $((i * pause)) s: $*" >&2
	sleep $((i * pause))
done
