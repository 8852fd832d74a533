// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/tensor/layout.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// One kind of dequantization: what is read, and the type of what comes out.
struct Slot {
  const SchemeInfo* scheme;
  Direction direction;
  DType dtype;
};

bool Rowwise(const Slot& slot);
Role DataOf(const Slot& slot);
Role ScalesOf(const Slot& slot);
/// Returns true for two codes per byte under an amax (NVFP4).
bool Packed(const Slot& slot);

/// Layout by the scheme's name. A line is a row for rowwise, a column for columnwise.
struct Geometry {
  std::size_t lines_per_scale, block;  // across and along lines; 0: the tensor is the block
  bool transposed;                     // columnwise codes
  bool block_major;                    // compact scales, by direction of the slot
};

Geometry GeometryOf(const Slot& slot);

/// Returns the index of the code at position `pos` of a line.
std::size_t CodePlace(const Slot& slot, MatrixShape matrix, std::size_t line, std::size_t pos);

/// Returns the item of the stored scale of a line's block.
std::size_t ScalePlace(const Slot& slot, const QuantizedBuffers& in, std::size_t line,
                       std::size_t block);

std::uint32_t ItemAt(const QuantizedBuffers& in, Role role, std::size_t item);
void SetItem(QuantizedBuffers& in, Role role, std::size_t item, std::uint32_t bits);
void SetCode(const Slot& slot, QuantizedBuffers& in, std::size_t place, std::uint32_t code);

/// Returns the bits of the value of element (row, col). Source: docs/numerics.md, "Dequantization".
std::uint32_t ReferenceValue(const Slot& slot, const QuantizedBuffers& in, std::size_t row,
                             std::size_t col);

}  // namespace narrowfloat::conformance
