// SPDX-License-Identifier: Apache-2.0
// The kernels of CUDA devices, as functions that launch them for whole tensors. Plain C++, without
// CUDA's types. All pointers are to device memory. All functions may throw DeviceError.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/numerics/host_device.h"
#include "narrowfloat/numerics/stochastic.h"
#include "narrowfloat/schemes/options.h"
#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::cuda {

inline constexpr int kMaxRowDims = 8;

/// A matrix with rows at the addresses that the leading dimensions of a tensor give them.
template <class Byte>
class Rows {
 public:
  Byte* data = nullptr;
  MatrixShape shape{};
  bool is_aligned = false;                          // every row begins at a multiple of 16 bytes
  int dims = 1;                                     // parts of the row number; the last is fastest
  std::array<std::int64_t, kMaxRowDims> sizes{};    // the first dimension's size is not read
  std::array<std::int64_t, kMaxRowDims> strides{};  // bytes

  NF_HD Byte* Row(std::size_t row) const {
    return dims == 1 ? data + static_cast<std::int64_t>(row) * strides[0] : RowOfDims(row);
  }

 private:
  /// Returns a row's address. Out of line: most tensors' rows are a fixed distance apart.
  NF_HD NF_NOINLINE Byte* RowOfDims(std::size_t row) const {
    auto rest = static_cast<std::int64_t>(row);
    std::int64_t offset = 0;
    for (int i = dims - 1; i > 0; --i) {
      offset += rest % sizes[static_cast<std::size_t>(i)] * strides[static_cast<std::size_t>(i)];
      rest /= sizes[static_cast<std::size_t>(i)];
    }
    return data + offset + rest * strides[0];
  }
};

/// A number: `*at` in device memory if `at` is not null, else `value`.
struct Number {
  const float* at = nullptr;
  float value = 0.0f;

  NF_HD float Get() const { return at != nullptr ? *at : value; }
  /// Returns true if both have the same address or, without addresses, the same bits.
  bool IsSame(const Number& other) const {
    return at == other.at && (at != nullptr || std::bit_cast<std::uint32_t>(value) ==
                                                   std::bit_cast<std::uint32_t>(other.value));
  }
};

/// Codes and scales of one direction.
template <class Byte>
struct DirectionMemory {
  Byte* codes = nullptr;  // null: the direction is absent
  std::size_t code_stride = 0;
  Byte* scale_inv = nullptr;
  ScaleStrides strides{};
  Number amax;                         // of the tensor, for schemes that use one
  const float* line_amaxes = nullptr;  // one per line, used instead of `amax`
  // The scheme's TensorState for `amax`, and the factors of its scales' codes, both written by
  // store_numbers(). Null if there is an amax per line.
  const std::byte* state = nullptr;
};

inline constexpr std::size_t kMostTensorStateBytes = 64;  // limit of a scheme's TensorState
inline constexpr std::size_t kScaleCodes = 256;           // codes of a scale of one byte
inline constexpr std::size_t kMostStateBytes = kMostTensorStateBytes + kScaleCodes * sizeof(float);

struct QuantizeCall {
  DType dtype;
  Rows<const std::byte> in;
  DirectionMemory<std::byte> rowwise, columnwise;
  ScaleOptions options;
  const float* tensor_scale = nullptr;  // for schemes with one scale
  unsigned* amax_bits = nullptr;        // raised to the input's amax, if not null
  bool stochastic = false;
  RandomState random;
  const std::uint64_t* random_at = nullptr;  // seed and offset, used instead of `random`
  float* strip_sums = nullptr;  // if not null and columns are quantized: sums as from SumStrips
  bool transforms = false;      // columns are quantized from the Hadamard transform
  std::uint32_t sign_mask = 0;
  const float* noop = nullptr;  // points at 1.0f: nothing is written
  Stream stream = nullptr;
};

struct DequantizeCall {
  DType dtype;
  Direction direction;
  DirectionMemory<const std::byte> in;  // its amax at amax.at may be unaligned
  Rows<std::byte> out;
  ScaleOptions options;
  const float* noop = nullptr;
  Stream stream = nullptr;
};

/// Inputs of a tensor's scale, and output buffers of its amaxes, its scale and scale_inv. Buffers
/// may be null, and need no alignment.
struct TensorNumbers {
  Number rowwise_amax, columnwise_amax, scale;
  ScaleOptions options;
  std::byte *rowwise_amax_out = nullptr, *columnwise_amax_out = nullptr;
  std::byte *scale_out = nullptr, *rowwise_scale_inv_out = nullptr,
            *columnwise_scale_inv_out = nullptr;
  float* tensor_scale = nullptr;
  std::byte *rowwise_state = nullptr, *columnwise_state = nullptr;  // for schemes with two amaxes
  unsigned* zeroed = nullptr;                                       // amax_bits of the next call
  const float* noop = nullptr;
  Stream stream = nullptr;
};

/// The kernels that are compiled for one scheme.
struct SchemeKernels {
  void (*store_numbers)(const TensorNumbers& call);
  void (*quantize)(const QuantizeCall& call);
  void (*dequantize)(const DequantizeCall& call);
};

/// Returns the kernels of the scheme with that index in AllSchemes.
const SchemeKernels& KernelsOfScheme(std::size_t scheme);

/// Raises *amax_bits to the bits of the largest magnitude if these are larger. Ignores NaN.
void RaiseAmax(DType dtype, const Rows<const std::byte>& in, unsigned* amax_bits, Stream stream);
/// Does as RaiseAmax for each row or column.
void RaiseLineAmaxes(DType dtype, const Rows<const std::byte>& in, Direction direction,
                     unsigned* amax_bits, Stream stream);
/// Raises *amax_bits to the amax of the Hadamard transform. Requires: rows are a multiple of 16.
void RaiseHadamardAmax(DType dtype, const Rows<const std::byte>& in, std::uint32_t sign_mask,
                       unsigned* amax_bits, Stream stream);
/// Writes the Hadamard transform. Requires: rows are a multiple of 16.
void TransformHadamard(DType dtype, const Rows<const std::byte>& in, const Rows<std::byte>& out,
                       std::uint32_t sign_mask, Stream stream);

/// Rows per strip: a strip's rows are summed one after another, then the strips' sums in order.
inline constexpr std::size_t kSumStripRows = 128;

/// Writes the sum of each strip and column, [strip][column].
void SumStrips(DType dtype, const Rows<const std::byte>& in, float* strip_sums, const float* noop,
               Stream stream);
/// Adds the strips of a tensor of `shape` and rounds to `out_dtype`; `out` needs no alignment.
void AddStrips(const float* strip_sums, MatrixShape shape, DType out_dtype, std::byte* out,
               const float* noop, Stream stream);

/// Updates delayed scaling's history and scales, as ops/delayed_scale.h describes.
struct DelayedScaleCall {
  std::byte *history, *scale;     // fp32, no alignment
  const std::byte* reduced_amax;  // null: the newest amax is in the history
  MatrixShape shape;              // of the history
  float scaled_max;
  bool most_recent;
  Stream stream;
};
void UpdateDelayedScale(const DelayedScaleCall& call);

/// Copies bytes, or fills with zeros if `from` is null. Does nothing if `noop` points at 1.0f.
void CopyBytes(std::byte* to, const std::byte* from, std::size_t bytes, const float* noop,
               Stream stream);

/// Copies `kept` scales of one byte from one placement to another, and zeroes the others.
void PermuteScales(const std::byte* from, const ScaleStrides& from_strides, std::byte* to,
                   const ScaleStrides& to_strides, const ScaleGrid& grid, MatrixShape kept,
                   Stream stream);
/// Stores the transposed matrix of codes of 4 or 8 bits; a byte has two 4-bit codes.
void Transpose(const std::byte* from, std::byte* to, MatrixShape shape, int item_bits,
               Stream stream);

/// Writes every columnwise scale: the rowwise scale of the tile with the scale's first element.
struct ScaleTransposition {
  const std::byte* from;
  std::byte* to;
  std::size_t item_bytes;
  ScaleStrides from_strides, to_strides;
  std::size_t lines, blocks;  // of `to`
  std::size_t block_rows, block_cols, lines_per_scale;
};
void TransposeScales(const ScaleTransposition& call, Stream stream);

/// Stores the exponents of fp32 scales. Sets *refused to ~(line * blocks + block) of the first
/// scale that is not a power of two of E8M0. Requires: *refused is 0.
struct ExponentCall {
  const std::byte* from;
  ScaleStrides from_strides;
  std::byte* to;
  ScaleStrides to_strides;
  std::size_t lines, blocks;
  std::size_t lines_per_scale, blocks_per_scale;
  unsigned* refused;
};
void StoreExponents(const ExponentCall& call, Stream stream);

}  // namespace narrowfloat::cuda
