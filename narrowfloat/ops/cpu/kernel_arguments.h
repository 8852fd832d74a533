// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/backends/kernel_buffers.h"
#include "narrowfloat/ops/cpu/tiles.h"

namespace narrowfloat {

/// Least columns of a tile: as many as fill a cache line with 8-bit codes.
inline constexpr std::size_t kRowRun = kLineBytes;
/// Return the units of a tile's rows and columns: with multiples of them, tiles begin on block
/// boundaries.
constexpr std::size_t RowUnit(const SchemeInfo& scheme, Direction direction) {
  if (direction == Direction::kRowwise) return scheme.block.rows > 1 ? scheme.block.rows : 1;
  return scheme.layout.columnwise_transposed ? kTransposedRun : scheme.block.cols;
}
constexpr std::size_t ColUnit(const SchemeInfo& scheme) {
  return scheme.block.cols > kRowRun ? scheme.block.cols : kRowRun;
}

/// Returns HeadOf for the codes of one direction.
template <class Byte>
std::size_t CodesHead(const DirectionBuffers<Byte>& of, const SchemeInfo& scheme,
                      std::size_t unit) {
  return HeadOf(of.codes, static_cast<std::ptrdiff_t>(of.code_stride),
                static_cast<std::size_t>(scheme.element_bits), unit);
}

}  // namespace narrowfloat
