# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk as a mapping whose tensors are read when asked for."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from narrowfloat import _core
from narrowfloat._core import QuantizedTensor

PROGRAM = Path(__file__).with_name("bin") / "narrowfloat"  # the command line, in C++


class LazyTensors(Mapping[str, np.ndarray | QuantizedTensor]):
    """Tensors of a checkpoint by name; each access reads one anew."""

    def __init__(self, checkpoint: _core.Checkpoint, dtype: object = None) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._names = dict.fromkeys(checkpoint.names())

    def __getitem__(self, name: str) -> np.ndarray | QuantizedTensor:
        if name not in self._names:
            raise KeyError(name)
        value = self._checkpoint.read(name, self._dtype)
        if self._dtype is None or not isinstance(value, QuantizedTensor):
            return value
        return _core.dequantize(value, dtype=self._dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __repr__(self) -> str:
        return f"LazyTensors({len(self)} tensors)"

    def __len__(self) -> int:
        return len(self._names)


def load(
    path: str | os.PathLike[str], *, from_: str | None = None, dtype: object = None
) -> LazyTensors:
    """The tensors of a safetensors file, an index file, or a folder of either, in sorted order.

    from_:   the convention that the weights are read by ("modelopt", "torchao", ...), or "auto" for
             the one that the files tell. A weight then comes under the name of its float tensor,
             with the codes and scales of the file; the scale of a whole NVFP4 tensor is rounded
             once where no amax gives it. None reads only our own convention.
    dtype:   float32, float16 or bfloat16: quantized weights come as arrays of their values.

    Types:   arrays of the file's dtype, through ml_dtypes for BF16 and the FP8 types; types
             narrower than a byte as their bytes. What save() or the command line quantized comes
             as QuantizedTensor.
    Errors:  FileNotFoundError if there is no such path; ValueError if it is no checkpoint or is
             damaged; OSError if it cannot be read; KeyError for a name it does not have;
             NotImplementedError for a convention that is not read, or a weight whose blocks no
             scheme has while dtype is not given.
    """
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    return LazyTensors(_core.Checkpoint(path, from_), dtype)


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    from_: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a quantized checkpoint in another convention with the same codes.

    Runs the command line, `narrowfloat convert`, and returns its JSON object (docs/cli.md).
    Errors:  ValueError for bad input; NotImplementedError for what the convention cannot hold, or
             a build without the command line; OSError if the disk fails. Nothing is written then.
    """
    if not PROGRAM.is_file():
        raise NotImplementedError(f"convert: this build has no command line ({PROGRAM})")
    options = ["--to", to, "--json"]
    options += [] if from_ is None else ["--from", from_]
    options += ["--overwrite"] if overwrite else []
    command = [os.fspath(PROGRAM), "convert", os.fspath(source), os.fspath(out), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    result = json.loads(done.stdout)
    if done.returncode != 0:
        error = result["error"]
        raise _EXCEPTIONS.get(error["kind"], ValueError)(error["message"])
    return result


_EXCEPTIONS: dict[str, type[BaseException]] = {
    "Unsupported": NotImplementedError,
    "IoError": OSError,
    "DeviceError": RuntimeError,
    "Interrupted": KeyboardInterrupt,
}
