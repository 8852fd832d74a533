# SPDX-License-Identifier: Apache-2.0
"""Caches rewritten, compiled modules between processes, apart from Python's own cache.

A plain import of the same file must not find rewritten code. So nothing is stored beside the
source: files are in the user's cache folder, named by a digest of their inputs.
"""

import contextlib
import functools
import hashlib
import importlib.util
import marshal
import os
import sys
import tempfile
from pathlib import Path
from types import CodeType

from narrowfloat.te import _rewrite, _rules
from narrowfloat.te._rewrite import Rewrite

Entry = tuple[CodeType, list[Rewrite]]


def folder() -> Path:
    """Returns the folder of entries, below Python's prefix for cached code if that is set."""
    chosen = sys.pycache_prefix or os.environ.get("XDG_CACHE_HOME")
    return Path(chosen or Path.home() / ".cache") / "narrowfloat" / "te"


@functools.cache
def _maker() -> bytes:
    """Returns a digest of the rules and the interpreter, which turn source into code."""
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    digest.update(str(sys.flags.optimize).encode())
    for module in (_rewrite, _rules):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.digest()


def _file_of(source: bytes, path: str) -> Path:
    digest = hashlib.sha256(_maker() + os.fsencode(path) + b"\0" + source)
    return folder() / f"{digest.hexdigest()}.code"


def load(source: bytes, path: str) -> Entry | None:
    """Returns the entry of a module; None if the entry is missing or damaged."""
    try:
        stored = _file_of(source, path).read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    size = hashlib.sha256().digest_size
    payload = stored[size:]
    if hashlib.sha256(payload).digest() != stored[:size]:
        return None
    code, rewrites = marshal.loads(payload)
    return code, [Rewrite(*fields) for fields in rewrites]


def store(source: bytes, path: str, entry: Entry) -> None:
    """Stores an entry atomically. A folder without write access is no error."""
    if sys.dont_write_bytecode:
        return
    code, rewrites = entry
    payload = marshal.dumps((code, [tuple(rewrite) for rewrite in rewrites]))
    with contextlib.suppress(OSError, RuntimeError):
        file = _file_of(source, path)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = tempfile.NamedTemporaryFile(dir=file.parent, delete=False)
        try:
            with written:
                written.write(hashlib.sha256(payload).digest() + payload)
            os.replace(written.name, file)
        except OSError:
            os.unlink(written.name)
            raise
