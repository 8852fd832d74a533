// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"
#include "tools/byte_buffer.h"

namespace narrowfloat::tools {

/// Returns an execution on `threads` threads; 0: the number in NF_NUM_THREADS, else all usable
/// CPUs. Errors: InvalidArgument for an invalid NF_NUM_THREADS, before the command does any work.
Execution ExecutionOf(int threads);

/// Returns the items of a tensor. Its bytes need not be aligned.
template <class T>
std::vector<T> ItemsOf(std::span<const std::byte> bytes) {
  std::vector<T> items(bytes.size() / sizeof(T));
  if (!items.empty()) std::memcpy(items.data(), bytes.data(), bytes.size());
  return items;
}

/// Writes the values of a quantized tensor, of this library's or another convention, to `out`.
/// `input` has the bytes of each entry of the tensor. Errors: as Dequantize.
void DequantizeStored(const io::StoredTensor& tensor,
                      const std::vector<std::span<const std::byte>>& input, const TensorView& out,
                      const Execution& execution);

/// Swaps the last two dimensions. Requires: both spans have the tensor's size.
void TransposeMatrices(std::span<const std::byte> in, const Shape& shape, std::size_t item_size,
                       std::span<std::byte> out);

/// Reads whole tensors into reused memory.
class TensorReader {
 public:
  explicit TensorReader(Execution execution) : execution_(execution) {}

  /// Returns the bytes of each entry, valid until the next call. Errors: IoError.
  const std::vector<std::span<const std::byte>>& Bytes(const io::TensorLocation& location);

  /// Returns the values in fp32, valid until the next call; no values for a plain tensor of a type
  /// other than F32, F16 and BF16.
  /// Errors: IoError.
  std::span<const float> Values(const io::TensorLocation& location);

 private:
  Execution execution_;
  ByteBuffer bytes_, values_;
  std::vector<std::span<const std::byte>> entries_;
};

}  // namespace narrowfloat::tools
