// SPDX-License-Identifier: Apache-2.0
#include "tools/tensor_values.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"
#include "tools/interrupt.h"

namespace narrowfloat::tools {
namespace {

void DequantizeOwn(const io::StoredTensor& tensor,
                   const std::vector<std::span<const std::byte>>& input, const TensorView& out,
                   const Execution& execution) {
  std::array<const std::byte*, kRoleCount> memory{};
  for (std::size_t i = 0; i < input.size(); ++i) {
    memory[static_cast<std::size_t>(tensor.plan[i].role)] = input[i].data();
  }
  const auto view = BindBuffers<ConstQuantizedView>(
      tensor.quantized->spec, tensor.shape(),
      [&](const BufferPlan& buffer) { return memory[static_cast<std::size_t>(buffer.storage)]; });
  Dequantize(view, out, execution);
}

void Widen(DType dtype, std::span<const std::byte> in, std::span<float> out,
           const Execution& execution) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out.data(), in.data(), in.size());
    return;
  }
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  ParallelFor(execution, CeilDiv(out.size(), kPiece), [&](std::size_t piece) {
    const std::size_t end = std::min(out.size(), (piece + 1) * kPiece);
    for (std::size_t i = piece * kPiece; i < end; ++i) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, in.data() + 2 * i, sizeof bits);
      out[i] = dtype == DType::kBFloat16 ? Decode<BFloat16>(bits) : Decode<Float16>(bits);
    }
  });
}

}  // namespace

Execution ExecutionOf(int threads) {
  const Execution execution{.threads = threads, .kernels = &ActiveKernels()};
  ThreadCount(execution);
  return execution;
}

void DequantizeStored(const io::StoredTensor& tensor,
                      const std::vector<std::span<const std::byte>>& input, const TensorView& out,
                      const Execution& execution) {
  if (!tensor.foreign) {
    DequantizeOwn(tensor, input, out, execution);
    return;
  }
  const std::size_t size = FlattenShape(tensor.shape()).Size() * ItemSize(out.dtype);
  io::DecodeWeight(*tensor.foreign, io::NamedParts(input), out.dtype, {out.data, size},
                   execution.threads);
}

void TransposeMatrices(std::span<const std::byte> in, const Shape& shape, std::size_t item_size,
                       std::span<std::byte> out) {
  constexpr std::size_t kPatch = 64;  // rows and columns, which fit in the first-level cache
  const auto rows = static_cast<std::size_t>(shape[shape.size() - 2]);
  const auto cols = static_cast<std::size_t>(shape.back());
  const std::size_t matrix = rows * cols * item_size;
  for (std::size_t begin = 0; matrix > 0 && begin < in.size(); begin += matrix) {
    for (std::size_t patch = 0; patch < rows; patch += kPatch) {
      for (std::size_t col = 0; col < cols; ++col) {
        for (std::size_t row = patch; row < std::min(rows, patch + kPatch); ++row) {
          std::memcpy(out.data() + begin + (col * rows + row) * item_size,
                      in.data() + begin + (row * cols + col) * item_size, item_size);
        }
      }
    }
  }
}

const std::vector<std::span<const std::byte>>& TensorReader::Bytes(
    const io::TensorLocation& location) {
  const io::StoredTensor& tensor = *location.tensor;
  std::span<std::byte> rest = bytes_.Take(tensor.Bytes());
  entries_.clear();
  for (std::size_t i = 0; i < tensor.entries.size(); ++i) {
    CheckInterrupt();
    const io::TensorEntry& entry = tensor.entries[i];
    io::HomeOf(location, i).file.Read(entry, 0, rest.first(entry.Bytes()));
    entries_.push_back(rest.first(entry.Bytes()));
    rest = rest.subspan(entry.Bytes());
  }
  return entries_;
}

std::span<const float> TensorReader::Values(const io::TensorLocation& location) {
  const io::StoredTensor& tensor = *location.tensor;
  const auto wide =
      tensor.IsPlain() ? io::WideFloat(tensor.entries.front().dtype) : DType::kFloat32;
  if (!wide) return {};
  const auto& input = Bytes(location);
  const std::size_t size = FlattenShape(tensor.shape()).Size();
  const auto memory = values_.Take(size * sizeof(float));
  const std::span<float> out{reinterpret_cast<float*>(memory.data()), size};
  if (tensor.IsPlain()) {
    Widen(*wide, input.front(), out, execution_);
  } else {
    DequantizeStored(tensor, input,
                     {memory.data(), DType::kFloat32, tensor.shape(), {}, Device::kCpu},
                     execution_);
  }
  return out;
}

}  // namespace narrowfloat::tools
