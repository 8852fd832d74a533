# SPDX-License-Identifier: Apache-2.0
"""Writes manifest.json and other_than_recorded.safetensors from the arrays that a GPU run gave.

    record.py ARRAYS.npz

ARRAYS.npz holds the bytes of each output, named GROUP/FOLDER/CASE/OUTPUT. FOLDER/CASE is a file of
tests/golden whose tensors were the inputs.
"""

import hashlib
import json
import struct
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "python"))
from golden import DTYPES, Case, cases  # noqa: E402

UNWRITTEN = 0xA7  # the run filled all outputs with this byte

ABOUT = {
    "what": "bytes of TransformerEngine's CUDA kernels for the inputs of tests/golden",
    "producer": "libtransformer_engine.so 2.20.2 (C interface, through ctypes)",
    "library_sha256": "d585bd398370550948dcefc338fad4c5f8e76ddc2eb88303b639441a4f2c9d3f",
    "gpu": "NVIDIA H200",
    "driver": "580.159.04, CUDA 13.0",
    "date": "2026-11-26",
    "sha256": "Of the bytes that the GPU wrote, little-endian, row-major, NaN as the GPU wrote it.",
    "nan": "The one bit pattern of all NaN in a floating-point output; absent where there is no "
    "NaN. It is a part of the hashed bytes. FP8 codes are hashed as they are and have no entry.",
    "unwritten": "Number of padding bytes that the kernel left as they were. They are hashed as 0.",
    "other": "True where the bytes are not those of the file in tests/golden, apart from NaN. All "
    "bytes are then in other_than_recorded.safetensors, under group/case/output.",
    "same_as": "The group's outputs are byte for byte those of another group.",
}
GROUPS = {
    "cs": "nvte_compute_amax, nvte_compute_scale_from_amax and nvte_quantize_v2 of x, one "
    "direction and both; nvte_dequantize of the codes and scale_inv that came out",
    "cs_static": "cs with NVTE_DISABLE_NVRTC=1",
    "ds": "nvte_quantize_v2 of x with the recorded scale and an amax of 0; nvte_dequantize of the "
    "codes and scale_inv that came out",
    "ds_static": "ds with NVTE_DISABLE_NVRTC=1",
    "bs": "nvte_quantize_v2 of x, one direction and both; "
    "nvte_swizzle_block_scaling_to_mxfp8_scaling_factors of the scales that came out",
    "ct": "nvte_quantize with scale 1, nvte_dequantize with scale_inv 1, "
    "nvte_compute_scale_from_amax of each recorded amax",
    "dsu": "kernel: nvte_delayed_scaling_recipe_amax_and_scale_update; bulk: ..._after_reduction "
    "without a buffer; bulk_reduced: with the amaxes in the buffer and half of them in the "
    "history; each from the recorded initial history and scale, step after step. Cases with x: "
    "nvte_quantize between the steps",
    "dq": "nvte_dequantize of the recorded codes, scale_inv and amax",
    "sw": "nvte_swizzle_scaling_factors of the recorded scales, padding of 0",
    "sw_pad": "nvte_swizzle_scaling_factors of the recorded scales, padding of 0xA7",
    "nv_dequant": "nvte_compute_amax of x; nvte_dequantize of the recorded codes, scale_inv and "
    "amax, compact",
    "rht": "nvte_hadamard_transform of the transpose",
    "dbias": "nvte_quantize_dbias and nvte_cast_transpose_dbias of x with scale 0.75: the sums",
    "dbias_static": "dbias with NVTE_DISABLE_NVRTC=1",
}
SAME = {"cs_static": "cs", "ds_static": "ds", "dbias_static": "dbias"}
NOT_RUN = (
    "Empty inputs; swizzles of scales of ragged shapes; transforms of other types than bf16; "
    "dequantization of MXFP8 and of FP8 blocks. MXFP8 and NVFP4 quantization ran and is left out, "
    "as TransformerEngine does not support it on Hopper: its MXFP8 kernels wrote nothing, and its "
    "NVFP4 kernels wrote 0 for every code, or nothing."
)


def record_of(case: Case, output: str) -> np.ndarray | None:
    """Returns the record of an output in the layout of the CUDA kernels, or None without one."""
    name = output.split(".", 1)[1] if output.startswith("both.") else output
    name = "dbias" if name.endswith(".dbias") else name
    variant, _, key = name.partition(".")
    if variant in ("kernel", "bulk", "bulk_reduced"):
        return case.by("port.kernel" if variant == "kernel" else f"port.kernel_{variant}", key)
    if name == "swizzled":
        name = "scale_inv_swizzled"
    return case.kernel(name) if name in case else None


def nan_pattern(items: np.ndarray) -> int | None:
    if items.dtype not in (DTYPES["fp32"], DTYPES["fp16"], DTYPES["bf16"]):
        return None
    bits = items.view(f"u{items.dtype.itemsize}")
    patterns = sorted({int(b) for b in bits[np.isnan(items.astype(np.float64))]})
    if len(patterns) > 1:
        raise ValueError(f"one pattern of NaN is expected, got {patterns}")
    return patterns[0] if patterns else None


def same(items: np.ndarray, record: np.ndarray) -> bool:
    """Returns whether all bits are equal. Any NaN equals any NaN."""
    bits = f"u{items.dtype.itemsize}"
    equal = items.view(bits) == record.view(bits)
    if items.dtype != np.uint8:
        both = [np.isnan(a.astype(np.float64)) for a in (items, record)]
        equal |= both[0] & both[1]
    return bool(equal.all())


def describe(case: Case, output: str, raw: np.ndarray) -> tuple[dict[str, object], np.ndarray]:
    record = record_of(case, output)
    items = raw.reshape(-1).view(np.uint8 if record is None else record.dtype)
    entry: dict[str, object] = {}
    if output.endswith("_gemm"):
        words = items.view(np.uint32)
        unwritten = words == UNWRITTEN * 0x01010101
        items = np.where(unwritten, np.uint32(0), words).view(np.float32)
        if unwritten.any():
            entry["unwritten"] = int(unwritten.sum()) * 4
    entry["sha256"] = hashlib.sha256(items.tobytes()).hexdigest()
    pattern = nan_pattern(items)
    if pattern is not None:
        entry["nan"] = f"{pattern:#x}"
    if record is not None and not same(items, record.reshape(-1)):
        entry["other"] = True
    return entry, items


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    names = {dtype: name for name, dtype in reversed(DTYPES.items())}
    case = {"case": f"te220_h200/{path.stem}", "schema": 1, "device": ABOUT["gpu"], "params": {}}
    case["source"] = ABOUT["producer"]
    case["tensors"] = {
        key: {"dtype": names[a.dtype], "shape": list(a.shape)} for key, a in arrays.items()
    }
    header: dict[str, object] = {"__metadata__": {"case": json.dumps(case)}}
    offset = 0
    for key, a in arrays.items():
        shape = [*a.shape, a.dtype.itemsize] if a.dtype.itemsize > 1 else list(a.shape)
        offsets = [offset, offset + a.nbytes]
        header[key] = {"dtype": "U8", "shape": shape, "data_offsets": offsets}
        offset += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(a.tobytes() for a in arrays.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main(source: str) -> None:
    arrays = np.load(source)
    golden = {c.name: c for f in {n.split("/")[1] for n in arrays.files} for c in cases(f)}
    groups: dict[str, dict[str, dict[str, object]]] = {name: defaultdict(dict) for name in GROUPS}
    others: dict[str, np.ndarray] = {}
    for name in arrays.files:
        group, folder, stem, output = name.split("/", 3)
        if group in SAME:
            twin = arrays[name.replace(group, SAME[group], 1)]
            if arrays[name].tobytes() != twin.tobytes():
                raise ValueError(f"{name} must be as in {SAME[group]}")
            continue
        entry, items = describe(golden[f"{folder}/{stem}"], output, arrays[name])
        groups[group][f"{folder}/{stem}"][output] = entry
        if "other" in entry:
            others[name] = items
    write_arrays(HERE / "other_than_recorded.safetensors", others)
    write_manifest({**ABOUT, "not_run": NOT_RUN}, groups)


def write_manifest(about: dict[str, str], groups: dict[str, dict]) -> None:
    """Writes one line per case, so that a comparison of two files shows the cases that differ."""
    lines = []
    for group, entries in groups.items():
        head = {"calls": GROUPS[group]}
        if group in SAME:
            head["same_as"] = SAME[group]
        text = [f"   {json.dumps(case)}: {json.dumps(e)}" for case, e in sorted(entries.items())]
        body = ",\n".join(text)
        lines.append(
            f"  {json.dumps(group)}: {json.dumps(head)[:-1]},\n"
            + '  "cases": {'
            + (f"\n{body}\n  " if text else "")
            + "}}"
        )
    head = json.dumps(about, indent=1)[:-2]
    text = head + ',\n "groups": {\n' + ",\n".join(lines) + "\n }\n}\n"
    json.loads(text)
    (HERE / "manifest.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
