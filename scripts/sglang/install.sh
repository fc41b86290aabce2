#!/usr/bin/env bash
# install.sh: the real SGLang, for the CPU, from the Python package registry alone, into .cache/sglang/venv; exactly the files of
# requirements.txt, by hash. What is installed already is left alone, and a run that was cut off is taken up where it was.
# Needs Linux on x86-64, Python 3.11 to 3.13 with venv (PYTHON=path chooses), gcc, g++, readelf, OpenSSL's headers, 4 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=scripts/sglang
dir=$PWD/.cache/sglang
venv=$dir/venv

fail() {
	echo "sglang/install.sh: $*" >&2
	exit 1
}

# What is there is of this version of these files, and at this place: a virtual environment cannot be moved. Written last.
want=$(echo "$venv" | cat - "$here/requirements.txt" "$here/install.sh" "$here"/cpu/*.py scripts/vllm/cuda_stubs.py | sha256sum)
if [[ $(cat "$dir/installed" 2>/dev/null) == "$want" ]]; then
	echo "SGLang $("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("sglang"))') is installed in .cache/sglang/venv"
	exit 0
fi

[[ $(uname -sm) == "Linux x86_64" ]] || fail "this is $(uname -sm); the wheels are for Linux on x86_64"
for tool in gcc g++ readelf; do
	command -v "$tool" >/dev/null || fail "$tool is missing (Debian: apt-get install g++ binutils)"
done
# SGLang compiles its page hash as it is first needed.
echo '#include <openssl/evp.h>' | g++ -E -x c++ - >/dev/null 2>&1 || fail "OpenSSL's headers are missing (Debian: apt-get install libssl-dev)"
# Asked of versions by running them: a name on the path may be a shim for something that is not there.
python=
for p in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
		python=$p
		break
	fi
done
[[ -n $python ]] || fail "no Python 3.11 to 3.13 with its venv module (Debian: apt-get install python3-venv); set PYTHON to one"

mkdir -p "$dir"
rm -f "$dir/installed"
# 2 GB are installed; the rest is what passes through on the way.
free=$(df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1024) }')
((free >= 4096)) || fail "$dir has $free MiB free, and 4096 are needed"

# Another Python, or a folder that was moved: from the start.
[[ $("$venv/bin/python" -c 'import sys; print(sys.prefix, sys.version)' 2>/dev/null) == "$venv $("$python" -c 'import sys; print(sys.version)')" ]] ||
	rm -rf "$venv"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || fail "$python -m venv failed"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r scripts/vllm/uv.txt || fail "pip could not install uv: is the package registry there?"
# Downloads are kept here until all is installed, so that the next run need not fetch them again. Same file system: uv links them.
echo "installing $(grep -c '^[a-z]' $here/requirements.txt) packages, 0.85 GB to fetch"
UV_CACHE_DIR=$dir/uv VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --quiet --no-deps --require-hashes -r $here/requirements.txt ||
	fail "not all packages could be fetched; run it again, what has come is kept"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$venv/bin/python" scripts/vllm/cuda_stubs.py "$site" || fail "the stand-ins for the CUDA libraries could not be made"
rm -rf "$site/sglang_on_cpu"
cp -r $here/cpu "$site/sglang_on_cpu"
# Read at each interpreter's start, the engine's child processes included; it does nothing unless it is asked to.
echo 'import os; os.environ.get("SGLANG_ON_CPU") == "1" and __import__("sglang_on_cpu").begin()' >"$site/sglang_on_cpu.pth"

# Imports all that a server does, which leaves byte code for its processes, and compiles the page hash: else the first request waits 13 s.
if ! (
	unset PYTHONDONTWRITEBYTECODE
	export PATH=$venv/bin:$PATH TORCH_EXTENSIONS_DIR=$dir/extensions SGLANG_ON_CPU=1 SGLANG_USE_CPU_ENGINE=1
	"$venv/bin/python" -P -W ignore -c 'import sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler
from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash
get_native_hash(list(range(16)), None, 16)'
) >"$dir/import.log" 2>&1; then
	tail -n 5 "$dir/import.log" >&2
	fail "it is installed, but cannot be imported"
fi
rm -rf "$dir/uv" "$dir/import.log"
echo "$want" >"$dir/installed"
echo "SGLang $("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("sglang"))') is installed in .cache/sglang/venv ($(du -sm "$venv" | cut -f1) MiB)"
