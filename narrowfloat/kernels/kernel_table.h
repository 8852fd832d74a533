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

/// A matrix whose rows are contiguous and may lie anywhere: a fixed distance apart, or at
/// `row_offsets`.
template <class Byte>
struct MatrixRows {
  Byte* data = nullptr;
  std::ptrdiff_t row_stride = 0;  // bytes
  const std::ptrdiff_t* row_offsets =
      nullptr;  // bytes from `data`, one a row; null: row_stride holds

  Byte* Row(std::size_t row) const {
    return data + (row_offsets != nullptr ? row_offsets[row]
                                          : static_cast<std::ptrdiff_t>(row) * row_stride);
  }
  /// Whether rows of `bytes` follow each other without a gap.
  bool IsContiguous(std::size_t bytes) const {
    return row_offsets == nullptr && row_stride == static_cast<std::ptrdiff_t>(bytes);
  }
};

/// The part of a matrix that one call of a kernel works on. Its corners lie on block boundaries,
/// but for the matrix's own far edges.
struct Tile {
  std::size_t row_begin, row_end, col_begin, col_end;
};

/// Codes and scales of one direction. `codes` is row-major as stored, `code_stride` bytes a stored
/// row; `scale_inv` items are fp32 or bytes as the scheme says and lie where `strides` says.
template <class Byte>
struct DirectionBuffers {
  Byte* codes = nullptr;
  std::size_t code_stride = 0;
  Byte* scale_inv = nullptr;
  ScaleStrides strides{};
  float amax = 0.0f;                       // of the tensor, where the scheme asks for one
  const std::byte* line_amaxes = nullptr;  // fp32, one for each line, that stand for it

  /// What a line's state is prepared from.
  float AmaxOf(std::size_t line) const {
    if (line_amaxes == nullptr) return amax;
    float line_amax;
    std::memcpy(&line_amax, line_amaxes + line * sizeof line_amax, sizeof line_amax);
    return line_amax;
  }
};

/// How products become codes.
enum class Rounding : std::uint8_t { kNearestEven, kStochastic };

/// Everything a kernel needs; checked before a kernel sees it. Padding of the scales is not a
/// kernel's work, and neither are the buffers of a scale that covers the whole tensor: the verb
/// writes both.
struct QuantizeArgs {
  MatrixRows<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  DirectionBuffers<std::byte> rowwise, columnwise;  // what the slot's direction names
  ScaleOptions options;
  Rounding rounding = Rounding::kNearestEven;
  RandomState random;         // of stochastic rounding
  float* measured = nullptr;  // gets the tile's amax, from whole-tensor schemes
  bool stream = false;        // codes are better written past the caches
};

struct DequantizeArgs {
  DirectionBuffers<const std::byte> in;
  MatrixShape shape;
  Tile tile;
  MatrixRows<std::byte> out;
  ScaleOptions options;
  bool stream = false;  // items are better written past the caches
};

/// Largest magnitude of a tile, NaN ignored, 0 if there is none.
using AmaxFn = float (*)(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept;
using QuantizeFn = void (*)(const QuantizeArgs& args) noexcept;
using DequantizeFn = void (*)(const DequantizeArgs& args) noexcept;
/// Raises the amaxes of the tile's columns (`amaxes` points at column 0), NaN ignored.
using ColumnAmaxFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                              float* amaxes) noexcept;
/// Writes the random Hadamard transform of each group of kHadamardSize rows to `out`, rounded once
/// to the items' type. Rows and columns of `out` count from the tile's corner.
using HadamardFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                            std::uint32_t sign_mask, const MatrixRows<std::byte>& out) noexcept;
/// Adds the tile's rows, in order, to the fp32 sums of its columns. `sums` points at those of
/// column 0, which are kept as suits the kernel; the tile's first column is a multiple of
/// kSumGroup.
using ColumnSumFn = void (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                             float* sums) noexcept;
/// The same; gives the tile's amax as AmaxFn does.
using AmaxSumFn = float (*)(const MatrixRows<const std::byte>& in, const Tile& tile,
                            float* sums) noexcept;
/// Brings kept sums of `cols` columns into the columns' order. The first column is a multiple of
/// kSumGroup, the last one ends a row or comes before another such multiple.
using SumOrderFn = void (*)(float* sums, std::size_t cols) noexcept;
inline constexpr std::size_t kSumGroup = 32;

template <class Fn>
using ByType = std::array<Fn, kFloatTypeCount>;

/// Slots by scheme, direction and float type; a null slot is one that a backend leaves to the
/// oracle.
using QuantizeSlots = std::array<std::array<ByType<QuantizeFn>, kDirectionCount>, kSchemeCount>;
using DequantizeSlots = std::array<std::array<ByType<DequantizeFn>, kDirectionCount>, kSchemeCount>;

/// One backend: a function for every operation, scheme, direction and type. Complete once built.
/// Dequantize has no slot for both directions: a reader picks one.
struct KernelTable {
  std::string_view name;
  ByType<AmaxFn> amax{};
  ByType<ColumnSumFn> column_sum{};
  ByType<AmaxSumFn> amax_sum{};
  ByType<SumOrderFn> sum_order{};
  ByType<ColumnAmaxFn> column_amax{};
  ByType<HadamardFn> hadamard{};
  QuantizeSlots quantize{};
  DequantizeSlots dequantize{};
  const GemmKernels* gemm = nullptr;  // null: products run on the reference in ops/slab_gemm.h
};

/// The oracle: plain loops, the executable definition of every slot.
const KernelTable& ScalarKernels();

/// All tables that this machine can run, best first, the oracle last. Fixed for the life of the
/// process.
const std::vector<const KernelTable*>& AvailableKernels();

/// The best table, or the one that NF_FORCE_BACKEND names.
/// Errors: Unsupported if that name is unknown or cannot run here.
const KernelTable& ActiveKernels();

}  // namespace narrowfloat
