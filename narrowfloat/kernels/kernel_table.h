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
  const std::ptrdiff_t* row_offsets =
      nullptr;  // bytes from `data`, one per row; null: row_stride is used

  Byte* Row(std::size_t row) const {
    return data + (row_offsets != nullptr ? row_offsets[row]
                                          : static_cast<std::ptrdiff_t>(row) * row_stride);
  }
  /// Returns true if rows of `bytes` are adjacent.
  bool IsContiguous(std::size_t bytes) const {
    return row_offsets == nullptr && row_stride == static_cast<std::ptrdiff_t>(bytes);
  }
};

/// The rectangle of a matrix that one call of a kernel processes. Its corners are block boundaries,
/// except at the matrix's far edges and where codes are dequantized: rowwise, rows may begin inside
/// a square block; transposed, columns, and rows of 8-bit codes, inside any block.
struct Tile {
  std::size_t row_begin, row_end, col_begin, col_end;
};

/// Codes and scales of one direction. `codes` is row-major as stored, with `code_stride` bytes per
/// stored row; `scale_inv` items are fp32 or bytes, as the scheme has them, placed by `strides`.
template <class Byte>
struct DirectionBuffers {
  Byte* codes = nullptr;
  std::size_t code_stride = 0;
  Byte* scale_inv = nullptr;
  ScaleStrides strides{};
  float amax = 0.0f;                       // of the tensor, for schemes that use one
  const std::byte* line_amaxes = nullptr;  // fp32, one per line, used instead of `amax`

  /// Returns the amax that a line's state is prepared from.
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
/// scales nor the buffers of a scale that covers the whole tensor: the verb does.
struct QuantizeArgs {
  std::size_t scheme;   // in kSchemes
  Direction direction;  // of the outputs that are written
  DType dtype;          // of the input
  MatrixRows<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  DirectionBuffers<std::byte> rowwise, columnwise;  // those of `direction` are set
  ScaleOptions options;
  float tensor_scale = 1.0f;  // factor of the items, for schemes with one scale
  Rounding rounding = Rounding::kNearestEven;
  RandomState random;  // for stochastic rounding
  // If set, the kernel quantizes the random Hadamard transform of the input by these signs, rounded
  // to the items' type, instead of the input. Only columnwise, for schemes that take
  // Option::kHadamard; the tile then has whole groups of kHadamardSize rows.
  std::optional<std::uint32_t> sign_mask;
  float* amax_out = nullptr;  // receives the tile's amax, for whole-tensor schemes
  bool nontemporal = false;   // codes are to be written with non-temporal stores
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
  bool nontemporal = false;  // items are to be written with non-temporal stores
};

template <class Item>
using ByType = std::array<Item, kFloatTypeCount>;

/// One backend: operations on a tile, for every scheme, direction and type of items. The functions
/// of this class are the reference: plain loops, the executable specification of every byte. The
/// table of an instruction set overrides them, and calls them for what no driver takes.
struct KernelTable {
  explicit KernelTable(std::string backend) : name(std::move(backend)) {}
  virtual ~KernelTable() = default;
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  /// Returns the largest magnitude of a tile, NaN ignored; 0 for an empty one.
  virtual float Amax(DType dtype, const MatrixRows<const std::byte>& in,
                     const Tile& tile) const noexcept;
  /// Adds the tile's rows, in order, to the fp32 sums of its columns, from its first one on.
  virtual void ColumnSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                         float* sums) const noexcept;
  /// Adds rows as ColumnSum does, and returns the tile's amax as Amax does.
  virtual float AmaxSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                        float* sums) const noexcept;
  /// Stores the amaxes of the tile's columns, from its first one on, NaN ignored.
  virtual void ColumnAmax(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                          float* amaxes) const noexcept;
  /// Writes the random Hadamard transform of each group of kHadamardSize rows to `out`, rounded
  /// once to the items' type, and returns its largest magnitude, NaN ignored. Rows and columns of
  /// `out` count from the tile's corner.
  virtual float Hadamard(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                         std::uint32_t sign_mask, const MatrixRows<std::byte>& out) const noexcept;
  /// Writes the codes and the scales of a tile.
  virtual void Quantize(const QuantizeArgs& args) const noexcept;
  /// Writes the values of a tile's codes, rounded to the type of the output.
  virtual void Dequantize(const DequantizeArgs& args) const noexcept;

  const std::string name;
  const GemmKernels* gemm = nullptr;  // null: products run on the reference in ops/cpu/slab_gemm.h
};

/// Returns the reference backend.
const KernelTable& ScalarKernels();

/// Returns all tables that this machine can run, best first, the reference last. Fixed for the life
/// of the process.
const std::vector<const KernelTable*>& AvailableKernels();

/// Returns the best table, or the one that NF_FORCE_BACKEND names.
/// Errors: Unsupported if that name is unknown or cannot run here.
const KernelTable& ActiveKernels();

}  // namespace narrowfloat
