# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over the sources that a configured build folder compiles; nothing is built.

usage: tidy.py BUILD [REGEX]     REGEX: only the sources whose path it matches
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Sources that a build generates, and sources that must fail to compile.
LEFT_OUT = re.compile(r"build/|tests/compile_fail/|\.\./|/")


def sources(build: Path, wanted: re.Pattern[str]) -> dict[str, dict]:
    """Returns each source's path from the root -> its compile command. clang-tidy itself would read
    a source of several programs once for each program.
    """
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = os.path.relpath(entry["file"], ROOT)
        if path.endswith(".cc") and not LEFT_OUT.match(path) and wanted.search(path):
            found.setdefault(path, entry)
    return found


def check(database: Path, path: str) -> bool:
    """Runs clang-tidy on one source and prints its findings."""
    start = time.monotonic()
    command = ["clang-tidy", "--quiet", "-p", str(database), path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    verdict = "" if done.returncode == 0 else ": FAILED"
    # stderr has the number of warnings in external headers, or the reason if clang-tidy failed.
    text = done.stdout or (done.stderr if done.returncode else "")
    print(f"tidy: {path} ({time.monotonic() - start:.0f} s){verdict}\n{text}", end="", flush=True)
    return done.returncode == 0


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if shutil.which("clang-tidy") is None:
        sys.exit("error: tidy: clang-tidy is not on the path")
    build = Path(sys.argv[1]).resolve()
    found = sources(build, re.compile(sys.argv[2] if len(sys.argv) > 2 else ""))
    if not found:
        sys.exit(f"error: tidy: {build} compiles no such source")
    database = build / "each-once"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(found.values())))
    # Kernels first: they take longest, and at the end other cores would be idle.
    ordered = sorted(found, key=lambda path: ("/kernels/" not in path, path))
    jobs = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        passed = list(pool.map(lambda path: check(database, path), ordered))
    print(f"tidy: {len(passed)} sources, {passed.count(False)} with findings")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
