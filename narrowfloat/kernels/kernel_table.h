// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/numerics/stochastic.h"
#include "narrowfloat/schemes/scheme.h"
#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {

struct GemmKernels;

/// A matrix with contiguous rows at arbitrary addresses: a fixed distance apart, or at
/// `row_offsets`.
template <class Byte>
struct MatrixRows {
  Byte* data = nullptr;
  std::ptrdiff_t row_stride = 0;  // bytes
  // Bytes from `data`, one per row; null: row_stride is used.
  const std::ptrdiff_t* row_offsets = nullptr;

  Byte* Row(std::size_t row) const {
    return data + (row_offsets != nullptr ? row_offsets[row]
                                          : static_cast<std::ptrdiff_t>(row) * row_stride);
  }
  /// Returns true if rows of `bytes` are adjacent.
  bool IsContiguous(std::size_t bytes) const {
    return row_offsets == nullptr && row_stride == static_cast<std::ptrdiff_t>(bytes);
  }
};

/// The rectangle of a matrix that one call of a kernel processes. Its corners are block boundaries
/// or edges of the matrix. Exceptions, in dequantization only: rows of rowwise codes may begin
/// inside a square block; columns of transposed codes inside any block; rows of transposed 8-bit
/// codes too.
struct Tile {
  std::size_t row_begin, row_end, col_begin, col_end;
};

/// Codes and scales of one direction. `codes` is row-major as stored, with `code_stride` bytes per
/// stored row; `scale_inv` items are the scheme's, fp32 or bytes, at the positions of `strides`.
template <class Byte>
struct DirectionBuffers {
  Byte* codes = nullptr;
  std::size_t code_stride = 0;
  Byte* scale_inv = nullptr;
  ScaleStrides strides{};
  float amax = 0.0f;                       // of the tensor, for schemes that use one
  const std::byte* line_amaxes = nullptr;  // fp32, one per line, used instead of `amax`

  /// Returns the amax from which a line's state is computed.
  float AmaxOf(std::size_t line) const {
    if (line_amaxes == nullptr) return amax;
    float line_amax;
    std::memcpy(&line_amax, line_amaxes + line * sizeof line_amax, sizeof line_amax);
    return line_amax;
  }
};

/// Rounding of a scaled value to a code.
enum class Rounding : std::uint8_t { kNearestEven, kStochastic };

/// Arguments of quantizing a tile, already checked. A kernel writes neither the padding of the
/// scales nor a scale of the whole tensor: the verb writes these.
struct QuantizeArgs {
  std::size_t scheme;   // in kSchemes
  Direction direction;  // of the outputs that are written
  DType dtype;          // of the input
  MatrixRows<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  DirectionBuffers<std::byte> rowwise, columnwise;  // set for the directions in `direction`
  ScaleOptions options;
  float tensor_scale = 1.0f;  // factor of the items, for schemes with one scale
  Rounding rounding = Rounding::kNearestEven;
  RandomState random;  // for stochastic rounding
  // If set, the kernel quantizes the random Hadamard transform of the input, with these signs and
  // rounded to the items' type. Only columnwise, for schemes with Option::kHadamard. The tile then
  // has whole groups of kHadamardSize rows.
  std::optional<std::uint32_t> sign_mask;
  float* amax_out = nullptr;  // receives the tile's amax, for whole-tensor schemes
  bool nontemporal = false;   // writes codes with non-temporal stores
};

/// Arguments of dequantizing a tile, already checked.
struct DequantizeArgs {
  std::size_t scheme;   // in kSchemes
  Direction direction;  // of `in`; not kBoth
  DType dtype;          // of the output
  DirectionBuffers<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  MatrixRows<std::byte> out;
  ScaleOptions options;
  bool nontemporal = false;  // writes items with non-temporal stores
};

/// The items of a tile, for the operations that read items alone.
struct TileItems {
  DType dtype;
  MatrixRows<const std::byte> in;
  Tile tile;
};

template <class Item>
using ByType = std::array<Item, kFloatTypeCount>;

/// One backend: operations on a tile, for every scheme, direction and type of items. The functions
/// of this class are the reference: plain loops that specify every byte. The table of an
/// instruction set overrides them, and calls them for cases that its drivers do not support.
struct KernelTable {
  explicit KernelTable(std::string backend) : name(std::move(backend)) {}
  virtual ~KernelTable() = default;
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  /// Returns the largest magnitude of a tile, NaN ignored; 0 for an empty one.
  virtual float Amax(const TileItems& items) const noexcept;
  /// Adds the tile's rows, in order, to fp32 sums of its columns; sums[0] is the first column's. If
  /// `amax` is not null, sets it to Amax(items).
  virtual void ColumnSum(const TileItems& items, float* sums, float* amax) const noexcept;
  /// Stores the amaxes of the tile's columns, NaN ignored; amaxes[0] is its first column's.
  virtual void ColumnAmax(const TileItems& items, float* amaxes) const noexcept;
  /// Writes the random Hadamard transform of each group of kHadamardSize rows to `out`, rounded
  /// once to the items' type. Returns its largest magnitude, NaN ignored. Rows and columns of `out`
  /// are indexed from the tile's corner.
  virtual float Hadamard(const TileItems& items, std::uint32_t sign_mask,
                         const MatrixRows<std::byte>& out) const noexcept;
  /// Writes the codes and the scales of a tile.
  virtual void Quantize(const QuantizeArgs& args) const noexcept;
  /// Writes the values of a tile's codes, rounded to the type of the output.
  virtual void Dequantize(const DequantizeArgs& args) const noexcept;

  const std::string name;
  const GemmKernels* gemm = nullptr;  // null: products run on the reference in ops/cpu/slab_gemm.h
  // True: one pass for both directions is faster than two even if rows of codes do not fill cache
  // lines (docs/performance.md).
  bool joins_partial_lines = true;
};

/// Returns the reference backend.
const KernelTable& ScalarKernels();

/// Returns all tables that this machine can run, best first, the reference last. Fixed for the life
/// of the process.
const std::vector<const KernelTable*>& AvailableKernels();

/// Returns the best table, or the one named in NF_FORCE_BACKEND. Errors: Unsupported if that name
/// is unknown or this machine cannot run it.
const KernelTable& ActiveKernels();

}  // namespace narrowfloat
