#!/usr/bin/env bash
# Runs every fuzz test for FUZZTIME (default 3s) each. An input that fails is left under testdata/fuzz/ of its package:
# commit it with the fix, plain `go test` replays it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${FUZZTIME:-3s}

# Only packages whose tests name a fuzz function are compiled for the list.
dirs=$(git ls-files -co --exclude-standard -- '*_test.go' | while IFS= read -r f; do
	if [[ -f $f ]] && grep -q '^func Fuzz' "$f"; then echo "./$(dirname "$f")"; fi
done | sort -u)
if [[ -z $dirs ]]; then
	echo "no fuzz test found: every parser has one (func FuzzXxx in a _test.go file)"
	exit 1
fi

ran=0
for dir in $dirs; do
	list=$(go test -list '^Fuzz' "$dir") || { echo "$list"; exit 1; }
	for name in $(grep '^Fuzz' <<<"$list"); do
		log=$(mktemp)
		for try in 1 2 3 4 5; do
			ok=1
			go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$dir" >"$log" 2>&1 || ok=0
			# On a busy machine the fuzzing engine can report its own deadline as a failure without an input
			# that fails (golang/go issue 48591 and its kin): that says nothing about the code. About one run in ten does so, hence up to five of them.
			if [[ $ok == 0 && $try -lt 5 ]] && grep -q 'context deadline exceeded' "$log" && ! grep -q 'Failing input' "$log"; then
				echo "$dir $name: the fuzzing engine met its own deadline, once more"
				continue
			fi
			break
		done
		if [[ $ok == 0 ]]; then
			cat "$log"
			rm -f "$log"
			exit 1
		fi
		# The last line of progress tells how much was tried.
		tried=$(grep -o 'execs: [0-9]*' "$log" | tail -1 || true)
		echo "$dir $name: ${tried:-only its seeds, $time was too short for more on this machine}"
		rm -f "$log"
		ran=$((ran + 1))
	done
done
echo "$ran fuzz tests, $time each"
