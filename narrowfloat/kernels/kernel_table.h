// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "narrowfloat/numerics/stochastic.h"
#include "narrowfloat/schemes/registry.h"
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
/// except at the matrix's far edges and where transposed codes are dequantized: there columns, and
/// rows of 8-bit codes, may begin inside a block.
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

/// Arguments of a quantizing kernel, already checked. A kernel writes neither the padding of the
/// scales nor the buffers of a scale that covers the whole tensor: the
/// verb does.
struct QuantizeArgs {
  MatrixRows<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  DirectionBuffers<std::byte> rowwise, columnwise;  // the slot's directions are set
  ScaleOptions options;
  Rounding rounding = Rounding::kNearestEven;
  RandomState random;         // for stochastic rounding
  float* amax_out = nullptr;  // receives the tile's amax, for whole-tensor schemes
  bool nontemporal = false;   // codes are to be written with non-temporal stores
};

struct DequantizeArgs {
  DirectionBuffers<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  MatrixRows<std::byte> out;
  ScaleOptions options;
  bool nontemporal = false;  // items are to be written with non-temporal stores
};

/// Returns the largest magnitude of a tile, NaN ignored; 0 for an empty one.
using AmaxFn = float (*)(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept;
using QuantizeFn = void (*)(const QuantizeArgs& args) noexcept;
using DequantizeFn = void (*)(const DequantizeArgs& args) noexcept;
/// Stores the amaxes of the tile's columns, from its first one on, NaN ignored.
using ColumnAmaxFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                              float* amaxes) noexcept;
/// Writes the random Hadamard transform of each group of kHadamardSize rows to `out`, rounded once
/// to the items' type. Rows and columns of `out` count from the tile's corner.
using HadamardFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                            std::uint32_t sign_mask, const MatrixRows<std::byte>& out) noexcept;
/// Adds the tile's rows, in order, to the fp32 sums of its columns, from its first one on.
using ColumnSumFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                             float* sums) noexcept;
/// Does the same; returns the tile's amax as AmaxFn does.
using AmaxSumFn = float (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                            float* sums) noexcept;

template <class Fn>
using ByType = std::array<Fn, kFloatTypeCount>;

/// Slots by scheme, direction and float type; a backend's null slot is replaced by the
/// reference's.
using QuantizeSlots = std::array<std::array<ByType<QuantizeFn>, kDirectionCount>, kSchemeCount>;
using DequantizeSlots = std::array<std::array<ByType<DequantizeFn>, kDirectionCount>, kSchemeCount>;

/// One backend: a function for every operation, scheme, direction and type. Complete once built.
/// Dequantize has no slot for both directions: a reader picks one.
struct KernelTable {
  std::string_view name;
  ByType<AmaxFn> amax{};
  ByType<ColumnSumFn> column_sum{};
  ByType<AmaxSumFn> amax_sum{};
  ByType<ColumnAmaxFn> column_amax{};
  ByType<HadamardFn> hadamard{};
  QuantizeSlots quantize{};
  DequantizeSlots dequantize{};
  const GemmKernels* gemm = nullptr;  // null: products run on the reference in ops/slab_gemm.h
};

/// Returns the reference backend: plain loops, the executable specification of every slot.
const KernelTable& ScalarKernels();

/// Returns all tables that this machine can run, best first, the reference last. Fixed for the life
/// of the process.
const std::vector<const KernelTable*>& AvailableKernels();

/// Returns the best table, or the one that NF_FORCE_BACKEND names.
/// Errors: Unsupported if that name is unknown or cannot run here.
const KernelTable& ActiveKernels();

}  // namespace narrowfloat
