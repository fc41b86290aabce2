#!/usr/bin/env bash
# readme.sh FILE.md: runs the commands that FILE.md shows. Above each ```sh block stands a comment that says what to do:
#
#     <!-- run 60s: text that the output must hold -->      (the text may be left out, with its colon)
#     <!-- not run: the reason -->
#
# A block without one fails, so that no command goes unchecked by accident; so does a file in which nothing is run.
# Each block is one `bash -euo pipefail` from the repository's root, in a process group that is ended after it, so a
# server that a block leaves in the background ends too.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:?a markdown file}
if [[ ! -f $file ]]; then
	echo "$file: missing"
	exit 1
fi
tmp=$(mktemp -d)
trap '[[ $BASHPID != "$$" ]] || rm -rf "$tmp"' EXIT # not in a timer that is ended as it begins, and has not dropped the trap yet

# Writes block N to $tmp/N.sh, its line number to N.line and its comment to N.mark.
awk -v dir="$tmp" '
	inblock && /^```/  { inblock = 0; close(dir "/" n ".sh"); mark = ""; next }
	inblock            { print >(dir "/" n ".sh"); next }
	/^```sh[ \t]*$/    { n++; inblock = 1; printf "" >(dir "/" n ".sh")
	                     print NR >(dir "/" n ".line"); print mark >(dir "/" n ".mark"); next }
	/^<!--.*-->[ \t]*$/ { mark = $0; sub(/^<!--[ \t]*/, "", mark); sub(/[ \t]*-->[ \t]*$/, "", mark); next }
	/[^ \t]/           { mark = "" }
' "$file"

ran=0
for n in $(cd "$tmp" && ls -- *.sh 2>/dev/null | sed 's/\.sh$//' | sort -n); do
	at="$file:$(cat "$tmp/$n.line")"
	mark=$(cat "$tmp/$n.mark")
	if [[ $mark =~ ^not\ run:\ *[^\ ] ]]; then
		continue
	elif [[ $mark =~ ^run\ ([0-9]+)s(:\ *(.*))?$ ]]; then
		limit=${BASH_REMATCH[1]} want=${BASH_REMATCH[3]:-}
	else
		echo "$at: a sh block needs a line above it: <!-- run 60s: expected text --> or <!-- not run: reason -->"
		exit 1
	fi
	start=$(date +%s)
	rc=0
	setsid bash -euo pipefail "$tmp/$n.sh" >"$tmp/out" 2>&1 </dev/null &
	pid=$!
	(
		for ((i = 0; i < limit; i++)); do sleep 1; done
		kill -KILL -- "-$pid" 2>/dev/null
	) &
	timer=$!
	wait "$pid" || rc=$?
	took=$(($(date +%s) - start))
	kill "$timer" 2>/dev/null || true
	wait "$timer" 2>/dev/null || true
	kill -TERM -- "-$pid" 2>/dev/null || true
	if [[ $rc != 0 || ( -n $want && $(cat "$tmp/out") != *"$want"* ) ]]; then
		sed 's/^/  | /' "$tmp/out"
		if [[ $rc != 0 ]]; then
			echo "$at: exit code $rc after ${took}s (limit ${limit}s)"
		else
			echo "$at: the output does not hold: $want"
		fi
		exit 1
	fi
	echo "$at: ok, ${took}s: $(head -1 "$tmp/$n.sh")"
	ran=$((ran + 1))
done
if [[ $ran == 0 ]]; then
	echo "$file: no sh block with <!-- run ... --> above it: it must show, and so prove, at least one command"
	exit 1
fi
echo "$ran blocks of $file ran"
