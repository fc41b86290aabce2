#!/usr/bin/env bash
# The tests with the race detector, all packages side by side. Packages whose tests failed are run once more alone, and the run passes
# if they pass then: on two cores the detector makes a test that waits for real processes and sockets miss its patience about once in
# ten runs of everything. What failed is printed and listed at the end either way, so that it gets mended.
# No second chance for what chance would hide: a data race, a panic, a leak, a build that fails, or more than three packages. A random
# test that failed has printed its seed, and has to pass with that very seed first: what a history of events did wrong it does again.
set -uo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

go test -race -count=1 -shuffle=on -timeout 8m ./... 2>&1 | tee "$log" && exit 0

failed=$(awk -F '\t' '$1 == "FAIL" && NF >= 3 && $3 !~ /failed/ { print $2 }' "$log")
count=$(wc -w <<<"$failed")
if [[ $count == 0 || $count -gt 3 ]] ||
	grep -qE 'DATA RACE|^panic:|^fatal error:|\[(build|setup) failed\]|[Ll]eak' <(grep -vE '^(ok|\?) ' "$log"); then
	exit 1
fi
# A package's lines come before the one that says how it ended: package, test, seed.
replays=$(awk -F '\t' '
	match($0, /replay with: go test -run .* -seed [0-9]+$/) { seeds[n++] = substr($0, RSTART) }
	$1 == "FAIL" && NF >= 3 {
		for (i = 0; i < n; i++) { split(seeds[i], quoted, "\x27"); sub(/.* -seed /, "", seeds[i]); print $2, quoted[2], seeds[i] }
	}
	NF >= 3 { n = 0 }' "$log")
if [[ $(grep -ciE 'seed' <(grep -vE '^(ok|\?) ' "$log")) -ne $(grep -c . <<<"$replays") ]]; then
	exit 1 # a seed that is told in another way is replayed by hand
fi
while read -r package test seed; do
	[[ -n $package ]] || continue
	echo "==> failed beside all others, with its seed again: $package $test $seed"
	go test -race -count=1 -timeout 8m "$package" -run "$test" -seed "$seed" || exit 1
done <<<"$replays"
echo "==> failed beside all others, once more alone:" $failed
go test -race -count=1 -timeout 8m -p 1 $failed || exit 1
echo "==> FAILED ONCE, PASSED ALONE: $(grep -oE '^ *--- FAIL: [^ ]+' "$log" | awk '{ print $3 }' | paste -sd ' ') in" $failed
