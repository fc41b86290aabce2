"""cuda_stubs.py SITE_PACKAGES: lets the CUDA build of torch be imported where there is no CUDA.

Its libraries are linked to libcudart, libcublas and a dozen others, and the loader refuses them when one is missing or lacks a symbol. Nothing
of theirs is called as long as no GPU is asked for. So each gets a stand-in of its name, in the folder where torch looks for the
real ones (nvidia/cu13/lib is on its RPATH), with all the symbols that torch wants from it, at the versions that it wants. Each
symbol is a function that returns 100, cudaErrorNoDevice: a call that does happen says that there is no GPU.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARY = re.compile(r"lib(cudart|cupti|cublas|cublasLt|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvshmem_host)\.so")
# Symbols without a version do not tell which library they are of. By their names they are CUDA's; any of the stand-ins may have them.
SYMBOL = re.compile(r"(cuda|__cuda|cupti|cublas|cudnn|cufft|cuFile|curand|cusolver|cusparse|p?nccl|nvrtc|nvshmem|nvJitLink|cu[A-Z])")


def readelf(option, file):
    return subprocess.run(["readelf", "--wide", option, file], capture_output=True, text=True, check=True).stdout


def missing(folder):
    """What the libraries of a folder want of CUDA: {library: {version or "": [symbol]}}."""
    libraries, wanted, defined, library_of = set(), {}, set(), {}
    for file in sorted(folder.glob("lib*.so")):
        libraries.update(name for name in re.findall(r"NEEDED.*\[(.*?)\]", readelf("--dynamic", file)) if LIBRARY.match(name))
        current = ""
        for line in readelf("--version-info", file).splitlines():
            if found := re.search(r"File: (\S+)", line):
                current = found[1]
            elif (found := re.search(r"Name: (\S+)", line)) and LIBRARY.match(current):
                library_of[found[1]] = current
        for line in readelf("--dyn-syms", file).splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].endswith(":"):
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] == "UND":
                wanted[name] = version.lstrip("@")
            else:
                defined.add(name)
    out = {library: {} for library in libraries}
    for version, library in library_of.items():
        out[library].setdefault(version, [])
    for name, version in wanted.items():
        if name in defined:
            continue
        if version in library_of:
            out[library_of[version]][version].append(name)
        elif SYMBOL.match(name):
            out[min(libraries)].setdefault("", []).append(name)
    return out


def build(path, versions):
    """One library with the symbols of {version or "": [symbol]}."""
    source = [".text"]
    for name in (n for names in versions.values() for n in names):
        source += [f".globl {name}", f".type {name},@function", f"{name}:"]
    source += ["mov $100,%eax", "ret", '.section .note.GNU-stack,"",@progbits', ""]
    script = "".join(f"{v} {{ global: {''.join(n + '; ' for n in names)}}};\n" for v, names in versions.items() if v)
    with tempfile.TemporaryDirectory() as tmp:
        s, m = pathlib.Path(tmp, "stub.s"), pathlib.Path(tmp, "stub.map")
        s.write_text("\n".join(source))
        m.write_text(script)
        link = [f"-Wl,--version-script={m}"] if script else []
        subprocess.run(["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", *link, "-o", path, s], check=True)


site = pathlib.Path(sys.argv[1])
out = site / "nvidia" / "cu13" / "lib"
out.mkdir(parents=True, exist_ok=True)
stubs = missing(site / "torch" / "lib")
for library, versions in stubs.items():
    build(out / library, versions)
print(f"{len(stubs)} CUDA libraries replaced by name, {sum(len(n) for v in stubs.values() for n in v.values())} symbols")
