# SPDX-License-Identifier: Apache-2.0
"""The random Hadamard transform of NVFP4's columns, as matrices, sign vectors and masks.

The core computes the transform. These functions describe it, under TransformerEngine's names, for
programs that compute it themselves; `device` is any torch device.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from narrowfloat import _core
from narrowfloat.pytorch._types import Device


@lru_cache
def rht_matrix(sign_mask: int, device: torch.device) -> torch.Tensor:
    """Returns signs on the diagonal times the scaled Hadamard matrix, in bfloat16."""
    return _transform_of_unit_rows(sign_mask).to(device=device, dtype=torch.bfloat16)


def _transform_of_unit_rows(sign_mask: int) -> torch.Tensor:
    eye = torch.eye(_core.HADAMARD_SIZE, dtype=torch.float32, device="cpu")
    columns = _core.hadamard_transform(eye.numpy(), sign_mask=sign_mask)
    return torch.from_numpy(columns).t().contiguous()


def get_no_random_sign_vector(device: torch.device | str) -> torch.Tensor:
    """Returns the signs of a transform without random signs: a single 1, which broadcasts."""
    return torch.ones(1, dtype=torch.float32, device=device)


def get_wgrad_sign_vector(device: torch.device | str) -> torch.Tensor:
    """Returns the fixed random signs of the transform, 1 and -1 in float32."""
    # Hadamard's first column is positive, so the transform's first column has the signs.
    return _transform_of_unit_rows(_core.HADAMARD_SIGN_MASK)[:, 0].sign().to(device)


def get_sign_from_vector(vector: torch.Tensor) -> int:
    """Returns signs as a mask: bit k is set if entry k is -1."""
    return sum(2**place for place, sign in enumerate(vector.tolist()) if sign == -1)


def get_hadamard_matrix(hadamard_dimension: int, device: torch.device | str) -> torch.Tensor:
    """Returns the orthonormal Hadamard matrix in float32.

    Errors: AssertionError for another dimension than the kernels'.
    """
    assert hadamard_dimension == _core.HADAMARD_SIZE, (
        f"get_hadamard_matrix: the dimension must be {_core.HADAMARD_SIZE}, "
        f"got {hadamard_dimension}"
    )
    return _transform_of_unit_rows(0).to(device)


def get_random_sign_mask_for_rht(with_random_sign_mask: bool, device: Device = None) -> int:
    """Returns the mask of the fixed random signs, or 0 without them."""
    return _core.HADAMARD_SIGN_MASK if with_random_sign_mask else 0


def get_rht_matrix(with_random_sign_mask: bool, device: torch.device | str) -> torch.Tensor:
    """Returns the matrix that the columns of NVFP4 are multiplied by, in bfloat16."""
    return rht_matrix(get_random_sign_mask_for_rht(with_random_sign_mask), torch.device(device))
