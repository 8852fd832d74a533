// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/host_device.h"
#include "narrowfloat/schemes/scheme.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat {

struct SchemeInfo;

enum class Direction : std::uint8_t { kRowwise, kColumnwise, kBoth };
inline constexpr std::size_t kDirectionCount = 3;

/// Strides, in items, of the scale of (line, block). In every layout, its position is a sum of one
/// term for the line and one for the block. Compact row-major, compact transposed and swizzled
/// layouts differ in these five strides alone.
struct ScaleStrides {
  // Per 128 lines; per 32 lines of a 128; per line of a 32.
  std::size_t line_tile, line_quarter, line;
  // Per 4 blocks; per block of a 4.
  std::size_t block_tile, block;

  NF_HD constexpr std::size_t LineOffset(std::size_t i) const {
    return i / kSwizzleLines * line_tile + i % kSwizzleLines / kSwizzleQuarter * line_quarter +
           i % kSwizzleQuarter * line;
  }
  NF_HD constexpr std::size_t BlockOffset(std::size_t j) const {
    return j / kSwizzleBlocks * block_tile + j % kSwizzleBlocks * block;
  }
  /// Returns true if the scales of a line's blocks are adjacent.
  NF_HD constexpr bool BlocksAreAdjacent() const {
    return block == 1 && block_tile == kSwizzleBlocks;
  }
  /// Returns true if the scales of a block's lines are adjacent.
  NF_HD constexpr bool LinesAreAdjacent() const {
    return line == 1 && line_quarter == kSwizzleQuarter && line_tile == kSwizzleLines;
  }
};

/// Returns true if rows and columns are multiples of the scheme's block length. A columnwise block
/// is the rowwise one transposed and has the same length. A whole tensor is always one block.
bool HasWholeBlocks(const SchemeInfo& scheme, MatrixShape matrix);

/// Numbers of the scales of one direction, without and with padding.
struct ScaleGrid {
  std::size_t lines, blocks;                // without padding
  std::size_t padded_lines, padded_blocks;  // with padding, as stored
  ScaleOrder order;

  constexpr std::size_t Items() const { return padded_lines * padded_blocks; }
  /// Returns the shape of the stored matrix as the buffer has it.
  constexpr MatrixShape StoredShape() const {
    return order == ScaleOrder::kLineMajor ? MatrixShape{padded_lines, padded_blocks}
                                           : MatrixShape{padded_blocks, padded_lines};
  }
};

/// Returns the grid of `direction` (kRowwise or kColumnwise) for a matrix. A scheme with one scale
/// has a grid of 1x1.
ScaleGrid MakeScaleGrid(const SchemeInfo& scheme, Direction direction, MatrixShape matrix);

/// Placement of scales: compact, as ScaleGrid lists them, or in the tiles that GEMMs read.
enum class ScalePlacement : std::uint8_t { kCompact, kSwizzled };

/// Returns the strides of a grid's scales in a placement.
ScaleStrides MakeScaleStrides(const ScaleGrid& grid, ScalePlacement placement);

}  // namespace narrowfloat
