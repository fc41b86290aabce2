"""lock.py PYLOCK ENGINE: prints a pylock.toml as pip requirements with hashes, only those of files that could be installed on Linux x86-64 with
CPython 3.11 to 3.13. (uv's own form has the hashes of every file ever published of a version: 370 KB instead of 40.)"""

import re
import sys
import tomllib

PYTHONS = {"cp311", "cp312", "cp313"}


def usable(wheel):
    """Whether a wheel is for one of PYTHONS on Linux x86-64 with glibc."""
    name = wheel.get("name") or wheel["url"].rsplit("/", 1)[1]
    *_, pythons, abis, platforms = name.removesuffix(".whl").split("-")
    if not any(p == "any" or re.fullmatch(r"(many)?linux.*_x86_64", p) for p in platforms.split(".")):
        return False
    # A wheel with the stable ABI of an older Python serves newer ones too.
    stable = abis in ("abi3", "none") and any(re.fullmatch(r"py3|py2|cp3\d?|cp31[0-3]", p) for p in pythons.split("."))
    return stable or (abis in PYTHONS and abis in pythons.split("."))


print(f"# Written by scripts/{sys.argv[2]}/lock.sh from requirements.in and overrides.txt: Linux x86-64, CPython 3.11 to 3.13.")
for p in tomllib.load(open(sys.argv[1], "rb"))["packages"]:
    marker = p.get("marker", "")
    if "'never'" in marker or re.search(r"sys_platform == '(win32|darwin|emscripten)'$", marker):
        continue
    files = [w for w in p.get("wheels", []) if usable(w)] or [p["sdist"]]
    hashes = sorted({f["hashes"]["sha256"] for f in files})
    print(" \\\n    ".join([f"{p['name']}=={p['version']}" + (f" ; {marker}" if marker else "")] + [f"--hash=sha256:{h}" for h in hashes]))
