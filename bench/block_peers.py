# SPDX-License-Identifier: Apache-2.0
"""Block-scaled FP8 and NVFP4 in plain PyTorch and JAX; compare.py runs them."""

from collections.abc import Callable

import numpy as np

# Name of the work -> scheme, whether it is rowwise, and options of narrowfloat.
BLOCK_WORKS: dict[str, tuple[str, bool, dict[str, float]]] = {
    "block1x128": ("fp8_block1x128_e4m3", True, {}),
    "block1x128 columnwise": ("fp8_block1x128_e4m3", False, {}),
    "block128x128": ("fp8_block128x128_e4m3", True, {}),
    "block128x128 columnwise": ("fp8_block128x128_e4m3", False, {}),
    "nvfp4": ("nvfp4", True, {}),
    "nvfp4 amax given": ("nvfp4", True, {"amax": 8.0}),
    "nvfp4 columnwise": ("nvfp4", False, {"amax": 8.0}),
}
# E2M1: the magnitudes at which the next code begins. Ties round to the even code, so every other
# limit belongs to the code above it.
LIMITS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
LIMITS[1::2] = np.nextafter(LIMITS[1::2], np.float32(0))


def block_title(name: str) -> str:
    """Returns the heading of a work in the table."""
    scheme, rowwise, options = BLOCK_WORKS[name]
    given = ", amax given" if options else ""
    return f"{scheme}, {'rowwise' if rowwise else 'columnwise'}{given}"


def block_kernel(name: str) -> str:
    """Returns the name of a work in core_bench."""
    scheme, rowwise, options = BLOCK_WORKS[name]
    way = ""
    if scheme == "nvfp4":
        way = "(amax given)" if options else "(amax measured)"
    return f"quantize{way} {scheme} {'rowwise' if rowwise else 'columnwise'}"


def microxcaling_mxfp8(x):  # noqa: ANN201  PyTorch is not imported here
    """Returns the result of microsoft/microxcaling's formula in PyTorch, in the wide type. It
    rounds the shared exponent down.
    """
    import torch

    blocks = x.view(-1, x.shape[-1] // 32, 32).float()
    amax = blocks.abs().amax(-1, keepdim=True)
    shared = torch.floor(torch.log2(amax + (amax == 0) * 2.0**-126)) - 8
    scaled = blocks / 2.0**shared
    private = torch.floor(torch.log2(scaled.abs() + (scaled == 0))).clamp(min=-6)
    step = 2.0 ** (private - 3)
    rounded = torch.sign(scaled) * torch.floor(scaled.abs() / step + 0.5) * step
    return (rounded.clamp(-448, 448) * 2.0**shared).bfloat16().view(x.shape)


def torch_block_functions() -> dict[str, Callable]:
    """Returns the formulas in PyTorch; results begin with the codes."""
    import torch

    fp8 = torch.float8_e4m3fn
    largest = torch.finfo(fp8).max
    limits = torch.from_numpy(LIMITS)

    def power_scale(amax):
        _, exponent = torch.frexp(largest / amax)  # largest power of two <= the quotient
        scale = torch.ldexp(torch.ones_like(amax), exponent - 1)
        return torch.where(amax == 0, torch.ones_like(amax), scale)

    def runs(x):
        blocks = x.view(x.shape[0], -1, 128).float()
        scale = power_scale(blocks.abs().amax(-1, keepdim=True))
        return (blocks * scale).to(fp8).view(x.shape), 1 / scale

    def tiles(x):
        blocks = x.view(x.shape[0] // 128, 128, -1, 128).float()
        scale = power_scale(blocks.abs().amax((1, 3), keepdim=True))
        return (blocks * scale).to(fp8).view(x.shape), 1 / scale

    def packed(x, amax):
        encode = largest * 6 / amax
        blocks = x.view(x.shape[0], -1, 16).float()
        wanted = blocks.abs().amax(-1, keepdim=True) * (encode * (1 / 6))
        scale_inv = wanted.clamp(max=largest).to(fp8)
        scaled = blocks * (1 / (scale_inv.float() * (1 / encode)))
        codes = torch.bucketize(scaled.abs(), limits, out_int32=True)
        codes = (codes | (torch.signbit(scaled).int() << 3)).view(x.shape[0], -1, 2)
        return (codes[..., 0] | codes[..., 1] << 4).to(torch.uint8), scale_inv

    def nvfp4(x):
        return packed(x, x.abs().max().float())

    return {
        "block1x128": runs,
        "block1x128 columnwise": lambda x: runs(x.t().contiguous()),
        "block128x128": tiles,
        "block128x128 columnwise": lambda x: tiles(x.t().contiguous()),
        "nvfp4": nvfp4,
        "nvfp4 amax given": lambda x: packed(x, torch.tensor(8.0)),
        "nvfp4 columnwise": lambda x: packed(x.t().contiguous(), torch.tensor(8.0)),
    }


def jax_block_functions() -> dict[str, Callable]:
    """Returns the formulas in JAX for XLA's narrow types; results begin with the codes."""
    import jax.numpy as jnp

    fp8 = jnp.float8_e4m3fn
    largest = jnp.float32(jnp.finfo(fp8).max)

    def power_scale(amax):
        _, exponent = jnp.frexp(largest / amax)
        return jnp.where(amax == 0, 1, jnp.ldexp(jnp.float32(1), exponent - 1))

    def runs(x):
        blocks = x.reshape(x.shape[0], -1, 128).astype(jnp.float32)
        scale = power_scale(jnp.abs(blocks).max(-1, keepdims=True))
        return (blocks * scale).astype(fp8).reshape(x.shape), 1 / scale

    def tiles(x):
        blocks = x.reshape(x.shape[0] // 128, 128, -1, 128).astype(jnp.float32)
        scale = power_scale(jnp.abs(blocks).max((1, 3), keepdims=True))
        return (blocks * scale).astype(fp8).reshape(x.shape), 1 / scale

    return {
        "block1x128": runs,
        "block1x128 columnwise": lambda x: runs(x.T),
        "block128x128": tiles,
        "block128x128 columnwise": lambda x: tiles(x.T),
    }
