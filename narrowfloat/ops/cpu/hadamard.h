// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat {

/// Transforms one tile into memory of the calling thread, which its next call overwrites. Rows and
/// columns of the result count from the tile's corner.
MatrixRows<const std::byte> TransformTile(const KernelTable& kernels, DType dtype,
                                          const MatrixRows<const std::byte>& in, const Tile& tile,
                                          std::uint32_t sign_mask);

/// Returns the amax of the transform of one tile.
float TransformedTileAmax(const KernelTable& kernels, DType dtype,
                          const MatrixRows<const std::byte>& in, const Tile& tile,
                          std::uint32_t sign_mask);

}  // namespace narrowfloat
