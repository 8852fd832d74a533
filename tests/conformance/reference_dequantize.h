// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/tensor/layout.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {

/// A kind of dequantization: the scheme and the direction of its input, the type of its output.
struct Slot {
  const SchemeInfo* scheme;
  Direction direction;
  DType dtype;
};

bool Rowwise(const Slot& slot);
Role DataOf(const Slot& slot);
Role ScalesOf(const Slot& slot);
/// Returns true if two codes share a byte (NVFP4, MXFP4).
bool Packed(const Slot& slot);

/// The layout that a scheme's name stands for.
struct Geometry {
  std::size_t lines_per_scale, block;  // lines and positions of a block; 0: the whole tensor
  bool transposed;                     // the layout of columnwise codes
  bool block_major;                    // the layout of compact scales in the slot's direction
};

Geometry GeometryOf(const Slot& slot);

/// Returns the index of the code at position `pos` of a line.
std::size_t CodePlace(const Slot& slot, MatrixShape matrix, std::size_t line, std::size_t pos);

/// Returns the index of the scale of a line's block in the stored scales.
std::size_t ScalePlace(const Slot& slot, const QuantizedBuffers& in, std::size_t line,
                       std::size_t block);

std::uint32_t ItemAt(const QuantizedBuffers& in, Role role, std::size_t item);
void SetItem(QuantizedBuffers& in, Role role, std::size_t item, std::uint32_t bits);
void SetCode(const Slot& slot, QuantizedBuffers& in, std::size_t place, std::uint32_t code);

/// Returns the bits of the decoded element (row, col). Source: docs/numerics.md, "Dequantization".
std::uint32_t ReferenceValue(const Slot& slot, const QuantizedBuffers& in, std::size_t row,
                             std::size_t col);

}  // namespace narrowfloat::conformance
