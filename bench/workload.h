// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/streams.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::bench {

/// Bytes on huge pages, touched, aligned to them: the first touch of a page would cost more than
/// the kernel.
class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes);
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// What the input looks like; kernels that branch on data show it here.
enum class Data { kGaussian, kWide, kHalfZero };

/// Input and output memory for every workload of one shape.
class Memory {
 public:
  Memory(Shape shape, Data data);

  const Shape& shape() const { return shape_; }
  ConstTensorView Input(DType dtype) const;
  TensorView Output(DType dtype) const;
  QuantizedView Quantized(const QuantSpec& spec) const;
  /// For a stream: as large as the largest input and output.
  std::byte* StreamIn() const { return inputs_[0].data(); }
  std::byte* StreamOut() const { return output_.data(); }

 private:
  Shape shape_;
  std::array<HugeBuffer, kFloatTypeCount> inputs_;
  HugeBuffer output_, codes_[2], scales_;
};

/// One call of a verb, and the traffic that it cannot do without: codes and floats, without the
/// scales, which are a thirtieth of it at most.
struct Workload {
  std::string name;  // verb, scheme, direction, type
  std::string_view backend;
  std::size_t elements;
  std::size_t extra_read_bytes;  // a pass over the input before the one that writes
  std::size_t read_bytes, write_bytes;
  std::function<void()> run;

  std::size_t Bytes() const { return extra_read_bytes + read_bytes + write_bytes; }
  /// The same traffic as plain loads and stores.
  void RunStream(const Memory& memory, Stores stores) const;
};

/// Every verb over every scheme, direction, type and backend, as the registry and the tables have
/// them. `memory` must outlive the result.
std::vector<Workload> MakeWorkloads(const Memory& memory, const Execution& execution);

}  // namespace narrowfloat::bench
