// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/safetensors_header.h"
#include "narrowfloat/schemes/scheme.h"
#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::io {

/// A quantized weight of another convention: codes in rows, and one scale per block of a matrix.
struct ForeignWeight {
  FileDType codes, scale;          // U8, I8 and F4 codes are E2M1, two per byte
  std::size_t matrices = 1;        // stacked experts
  std::size_t rows = 0, cols = 0;  // of a matrix, counted in values
  BlockShape block{};              // of a matrix; may be the whole matrix
  bool tiled = false;  // the block's size is the model's; it may equal the matrix's by chance
  GlobalScale global = GlobalScale::kNone;
  std::size_t globals = 1;       // scales of the whole tensor: one for all matrices, or one each
  bool transposed = false;       // the float tensor is stored transposed
  bool swizzled = false;         // scales are in the tiles that GEMMs read, padded
  bool high_half_first = false;  // the high half of a byte has the first code, else the low half
  Shape shape{};                 // of the float tensor
  std::string input_scale{};     // name of the tensor with the one scale of the layer's inputs

  std::size_t ScaleRows() const { return CeilDiv(rows, block.rows); }
  std::size_t ScaleCols() const { return CeilDiv(cols, block.cols); }
  bool Packed() const {
    return Info(codes).bits == 4 || codes == FileDType::kU8 || codes == FileDType::kI8;
  }
};

/// Returns the format as text: "e4m3 1x32 F8_E8M0". With one scale, the block is "tensor", or
/// "matrix" in a stack.
std::string FormatText(const ForeignWeight& weight);

/// Returns whether tensors of that type may be codes.
bool MayHoldCodes(FileDType dtype);

/// Returns whether scales of that type are E8M0 codes.
bool HoldsExponents(FileDType dtype);

/// Returns the name of the format of codes: "e4m3".
std::string_view ElementOf(const ForeignWeight& weight);

/// Facts about a weight besides the types and shapes of its tensors.
struct WeightHints {
  // The block in the model's configuration or in the weight's description; a size of 0 is the size
  // of the matrix.
  std::optional<BlockShape> block{};
  bool for_all_weights = false;  // whether the model has one block size, not one for this weight
  bool swizzled = false, high_half_first = false;
  bool needs_global = true;  // whether E4M3 scales need a scale of the whole tensor
};

/// Determines a weight's blocks from types and shapes. `global` is null without a scale of the
/// whole tensor. Stacked experts with a single scale count as one matrix.
/// Errors: InvalidArgument, beginning with `source`, if types and shapes do not fit each other;
/// Unsupported for MXFP6.
ForeignWeight DescribeWeight(const std::string& source, const WeightNames& names,
                             const TensorEntry& codes, const TensorEntry& scale,
                             const TensorEntry* global, const WeightHints& hints);

/// Returns the block that spans a matrix. For an empty matrix, its sizes are at least 1, since
/// sizes are divided by them.
BlockShape WholeBlock(const MatrixShape& matrix);

/// Returns a weight of FP8 codes that are values: its one scale is 1 and not stored.
ForeignWeight UnscaledWeight(const TensorEntry& codes);

/// The bytes of a weight's tensors.
struct ForeignBytes {
  std::span<const std::byte> codes, scale, global;
};

/// Returns the bytes of a weight's tensors by name, from the order codes, scale, global. The scale
/// of an unscaled weight is 1.0f.
ForeignBytes NamedParts(std::span<const std::span<const std::byte>> tensors);

/// Returns swizzled scales row by row, without padding. Requires: `weight.swizzled`.
std::vector<std::byte> ScalesByRow(const ForeignWeight& weight, std::span<const std::byte> scale);

/// Returns bytes of two codes each with their halves exchanged.
std::vector<std::byte> ExchangeHalves(std::span<const std::byte> codes);

}  // namespace narrowfloat::io
