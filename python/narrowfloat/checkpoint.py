# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk as a mapping whose tensors are read on access."""

import contextlib
import errno
import json
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from narrowfloat import _core
from narrowfloat._core import QuantizedTensor

_FILE, _CONFIG, _OWNER_CONFIG = "model.safetensors", "config.json", "hf_quant_config.json"
PROGRAM = Path(__file__).with_name("bin") / "narrowfloat"  # the command line, in C++


class LazyTensors(Mapping[str, np.ndarray | QuantizedTensor]):
    """Tensors of a checkpoint by name; each access reads one tensor from the files."""

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
    """Returns the tensors of a safetensors file, an index file, or a folder of either, sorted.

    from_:   the convention of the weights ("modelopt", "torchao", ...), or "auto" to detect it in
             the files. A weight then has the name of its float tensor, and the codes and scales of
             the file; the scale of a whole NVFP4 tensor is rounded once if no amax gives it. None
             reads only narrowfloat's own convention.
    dtype:   float32, float16 or bfloat16: quantized weights are returned as arrays of values, those
             of the Hadamard transform for weights that have only columnwise codes with rht.

    Types:   arrays of the file's dtype, through ml_dtypes for BF16 and the FP8 types; types
             narrower than a byte as their bytes. Tensors quantized by save() or the command line
             are QuantizedTensors.
    Errors:  FileNotFoundError for a missing path; TypeError for another dtype; ValueError if it is
             not a checkpoint or is damaged; OSError if it cannot be read; KeyError for an unknown
             name; NotImplementedError for an unsupported convention, or without dtype for a weight
             with blocks that no scheme has.
    """
    if not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    if dtype is not None:
        _core.check_load_dtype(dtype)
    return LazyTensors(_core.Checkpoint(path, from_), dtype)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray | QuantizedTensor],
    *,
    convention: str = "narrowfloat",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Writes arrays and quantized tensors to a safetensors file or a folder.

    path:       a file; or an existing folder, or any path if `config` is given. A folder gets
                model.safetensors, config.json with the quantization_config of the convention and,
                for ModelOpt, hf_quant_config.json, as `narrowfloat convert` writes them.
    convention: "narrowfloat" stores a QuantizedTensor as its buffers and its spec text; another one
                as the tensors of that library, with the same codes. load(from_=) reads both.
    config:     the model's config.json; by default the one in the folder, if it exists.

    Types:   any dtype of whole bytes that safetensors names, ml_dtypes' included.
    Errors:  TypeError for another dtype or object, masked arrays included; ValueError for a name
             that UTF-8 cannot encode, a tensor without all buffers of its plan, an unknown
             convention, a path without an existing parent, or a folder with other safetensors files
             or an unfinished job; NotImplementedError for a tensor that the convention cannot hold;
             OSError if it cannot be written. No file is written partly, and no file is written
             unless all fit on the disk.
    Warns:   UserWarning for weights that are only read with a scale of the inputs (ModelOpt), or
             may be decoded wrongly (`fp8` of other shapes than multiples of 128).
    """
    _check_names(tensors)
    folder = Path(path)
    if config is None and not folder.is_dir():
        _core.save(path, tensors, convention=convention)
        return
    others = {*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")}
    others.discard(folder / _FILE)
    mark = _core.find_unfinished_mark(folder)
    if mark is not None:
        raise ValueError(
            f"save: the job that writes {folder} must be finished, got its mark {mark}; run the "
            "job again, or remove the mark"
        )
    if others:
        raise ValueError(f"save: {folder} must have no other safetensors files, got {min(others)}")
    model = _text_of(folder / _CONFIG) if config is None else json.dumps(config)
    config_text, owner_text = _core.config_files(tensors, convention, model)
    beside = [(folder / _CONFIG, config_text)]
    if owner_text:
        beside.append((folder / _OWNER_CONFIG, owner_text))
    if not folder.parent.is_dir():
        raise ValueError(f"save: the parent of {folder} must exist")
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        _core.save(folder / _FILE, tensors, convention=convention, beside=beside)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # for example a file that another program wrote
                folder.rmdir()
        raise
    if not owner_text:
        (folder / _OWNER_CONFIG).unlink(missing_ok=True)  # may be from an earlier checkpoint


def quantization_config(
    tensors: Mapping[str, np.ndarray | QuantizedTensor],
    convention: str = "narrowfloat",
    *,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns the quantization_config of config.json for tensors that save() writes to a file.

    Lists the modules with unquantized matrices and, by the model's `config`, a tied output head.
    Errors:  as save(); ValueError if no tensor is quantized.
    """
    _check_names(tensors)
    text, _ = _core.config_files(tensors, convention, json.dumps(config or {}))
    made: dict[str, Any] = json.loads(text)["quantization_config"]
    return made


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
    Errors:  ValueError for bad input; NotImplementedError for a tensor that the convention cannot
             hold, or a build without the command line; MemoryError; OSError if the disk fails or
             the command line is killed; KeyboardInterrupt if it is interrupted; RuntimeError for an
             internal error. Nothing is written then.
    Warns:   UserWarning for each of the object's `notes`, after the files are written.
    """
    if not PROGRAM.is_file():
        raise NotImplementedError(f"convert: this build has no command line ({PROGRAM})")
    options = ["--to", to, "--json"]
    options += [] if from_ is None else ["--from", from_]
    options += ["--overwrite"] if overwrite else []
    # After "--" a path may begin with a dash.
    command = [PROGRAM, "convert", *options, "--", source, out]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    try:
        result = json.loads(done.stdout)
    except ValueError:
        # A negative exit status is the negated number of the signal that ended the program.
        raise OSError(
            f"convert: the command line must end with a JSON object, got exit status "
            f"{done.returncode}"
        ) from None
    if done.returncode != 0:
        error = result["error"]
        raise _EXCEPTIONS.get(error["kind"], ValueError)(error["message"])
    for note in result["notes"]:
        warnings.warn(f"convert: {note}", UserWarning, stacklevel=2)
    return result


def _check_names(tensors: Mapping[str, object]) -> None:
    """Raises ValueError for a name that UTF-8, the encoding of safetensors, cannot encode.

    The core checks everything else, including that `tensors` is a mapping.
    """
    for name in getattr(tensors, "keys", tuple)():
        try:
            str(name).encode()
        except UnicodeEncodeError:
            raise ValueError(f"save: names must be encodable as UTF-8, got {name!a}") from None


def _text_of(path: Path) -> str:
    """Returns the text of a config.json; that of an empty object if there is no file."""
    try:
        return path.read_bytes().decode()  # read_text() would change the ends of lines
    except FileNotFoundError:
        return "{}"
    except UnicodeDecodeError as error:
        raise ValueError(f"save: {path} must be UTF-8, {error}") from None


_EXCEPTIONS: dict[str, type[BaseException]] = {
    "Unsupported": NotImplementedError,
    "IoError": OSError,
    "DeviceError": RuntimeError,
    "Interrupted": KeyboardInterrupt,
    "OutOfMemory": MemoryError,
    "Internal": RuntimeError,
}
