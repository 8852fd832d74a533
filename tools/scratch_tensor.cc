// SPDX-License-Identifier: Apache-2.0
#include "tools/scratch_tensor.h"

#include <array>

#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::tools {

QuantizedView ScratchTensor::Bind(const QuantSpec& spec, const Shape& shape) {
  const std::vector<BufferPlan> stored = io::StoredBuffers(spec, shape);
  std::array<std::span<std::byte>, kRoleCount> memory;
  std::uint64_t bytes = 0;
  for (const BufferPlan& buffer : stored) bytes += RoundUp(BufferBytes(buffer), kLineBytes);
  std::span<std::byte> rest = memory_.Take(bytes);
  buffers_.clear();
  for (const BufferPlan& buffer : stored) {
    memory[static_cast<std::size_t>(buffer.role)] = rest.first(BufferBytes(buffer));
    buffers_.push_back(rest.first(BufferBytes(buffer)));
    rest = rest.subspan(RoundUp(BufferBytes(buffer), kLineBytes));
  }
  return BindBuffers<QuantizedView>(spec, shape, [&](const BufferPlan& buffer) {
    return memory[static_cast<std::size_t>(buffer.storage)].data();
  });
}

}  // namespace narrowfloat::tools
