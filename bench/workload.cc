// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"

namespace narrowfloat::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::vector<float> Draw(Data data, std::size_t count) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 40);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (data == Data::kWide) value = std::ldexp(value, exponent(random));
    if (data == Data::kHalfZero && random() % 2 == 0) value = 0.0f;
  }
  return values;
}

/// Stores `value` as a float of that type.
void StoreAs(DType dtype, float value, std::byte* to) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::kFloat16) bits = Encode<Float16, Overflow::kInfinity>(value);
  if (dtype == DType::kBFloat16) bits = Encode<BFloat16, Overflow::kInfinity>(value);
  std::memcpy(to, &bits, ItemSize(dtype));
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
static_assert(std::size(kTypes) == kFloatTypeCount);

constexpr std::string_view kDirectionNames[] = {"rowwise", "columnwise", "both"};

QuantSpec SpecOf(const SchemeInfo& scheme, Direction direction) {
  return {.scheme = &scheme,
          .rowwise = direction != Direction::kColumnwise,
          .columnwise = direction != Direction::kRowwise};
}

void AddQuantize(const Memory& memory, const SchemeInfo& scheme, Direction direction, DType dtype,
                 const Execution& execution, std::vector<Workload>& workloads) {
  const std::size_t elements = FlattenShape(memory.shape()).Size();
  const QuantSpec spec = SpecOf(scheme, direction);
  const std::size_t directions = direction == Direction::kBoth ? 2 : 1;
  const auto add = [&](std::string_view verb, const QuantSpec& wanted, bool second_pass) {
    Workload workload{
        fmt::format("{} {} {} {}", verb, scheme.name,
                    kDirectionNames[static_cast<std::size_t>(direction)], DTypeName(dtype)),
        execution.kernels->name,
        elements,
        second_pass ? elements * ItemSize(dtype) : 0,
        elements * ItemSize(dtype),
        elements * static_cast<std::size_t>(scheme.element_bits) / 8 * directions,
        {}};
    workload.run = [in = memory.Input(dtype), out = memory.Quantized(wanted), execution] {
      Quantize(in, out, execution);
    };
    workloads.push_back(std::move(workload));
  };
  if (!scheme.options.Has(Option::kScale)) return add("quantize", spec, false);
  add("quantize(current)", spec, true);
  QuantSpec given = spec;
  given.scale = 64.0f;
  add("quantize(scale given)", given, false);
}

void AddDequantize(const Memory& memory, const SchemeInfo& scheme, Direction direction, DType dtype,
                   const Execution& execution, std::vector<Workload>& workloads) {
  const std::size_t elements = FlattenShape(memory.shape()).Size();
  Workload workload{
      fmt::format("dequantize {} {} {}", scheme.name,
                  kDirectionNames[static_cast<std::size_t>(direction)], DTypeName(dtype)),
      execution.kernels->name,
      elements,
      0,
      elements * static_cast<std::size_t>(scheme.element_bits) / 8,
      elements * ItemSize(dtype),
      {}};
  workload.run = [in = ConstQuantizedView(memory.Quantized(SpecOf(scheme, direction))),
                  out = memory.Output(dtype), execution] { Dequantize(in, out, execution); };
  workloads.push_back(std::move(workload));
}

void AddBackend(const Memory& memory, const Execution& execution,
                std::vector<Workload>& workloads) {
  const std::size_t elements = FlattenShape(memory.shape()).Size();
  for (const DType dtype : kTypes) {
    workloads.push_back(
        {fmt::format("amax {}", DTypeName(dtype)), execution.kernels->name, elements, 0,
         elements * ItemSize(dtype), 0,
         [in = memory.Input(dtype), execution] { static_cast<void>(Amax(in, execution)); }});
    for (const SchemeInfo& scheme : kSchemes) {
      for (const Direction direction :
           {Direction::kRowwise, Direction::kColumnwise, Direction::kBoth}) {
        AddQuantize(memory, scheme, direction, dtype, execution, workloads);
      }
      AddDequantize(memory, scheme, Direction::kRowwise, dtype, execution, workloads);
      AddDequantize(memory, scheme, Direction::kColumnwise, dtype, execution, workloads);
    }
  }
}

}  // namespace

HugeBuffer::HugeBuffer(std::size_t bytes) {
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded));
  if (data_ == nullptr) throw std::bad_alloc();
  madvise(data_, rounded, MADV_HUGEPAGE);  // advice: slower without, not wrong
  std::memset(data_, 0x38, rounded);
}

HugeBuffer::~HugeBuffer() {
  std::free(data_);
}

Memory::Memory(Shape shape, Data data)
    : shape_(std::move(shape)),
      inputs_{HugeBuffer(FlattenShape(shape_).Size() * 4),
              HugeBuffer(FlattenShape(shape_).Size() * 2),
              HugeBuffer(FlattenShape(shape_).Size() * 2)},
      output_(FlattenShape(shape_).Size() * 4),
      codes_{HugeBuffer(FlattenShape(shape_).Size()), HugeBuffer(FlattenShape(shape_).Size())},
      scales_(FlattenShape(shape_).Size()) {
  const std::size_t elements = FlattenShape(shape_).Size();
  // A prime number of drawn values, repeated: they never line up with rows.
  const std::vector<float> values = Draw(data, std::min<std::size_t>(elements, 1000003));
  for (const DType dtype : kTypes) {
    std::byte* to = inputs_[static_cast<std::size_t>(dtype)].data();
    for (std::size_t i = 0; i < elements; ++i)
      StoreAs(dtype, values[i % values.size()], to + i * ItemSize(dtype));
  }
}

ConstTensorView Memory::Input(DType dtype) const {
  return {inputs_[static_cast<std::size_t>(dtype)].data(), dtype, shape_, {}, Device::kCpu};
}

TensorView Memory::Output(DType dtype) const {
  return {output_.data(), dtype, shape_, {}, Device::kCpu};
}

QuantizedView Memory::Quantized(const QuantSpec& spec) const {
  std::size_t used = 0;
  return BindBuffers<QuantizedView>(spec, shape_, [&](const BufferPlan& buffer) {
    if (buffer.role == Role::kRowwiseData) return codes_[0].data();
    if (buffer.role == Role::kColumnwiseData) return codes_[1].data();
    if (buffer.storage != buffer.role) return scales_.data();  // follows the first scale
    std::byte* data = scales_.data() + used;
    used += RoundUp(BufferBytes(buffer), 64);
    return data;
  });
}

void Workload::RunStream(const Memory& memory, Stores stores) const {
  if (extra_read_bytes != 0) SameTraffic(memory.StreamIn(), extra_read_bytes, nullptr, 0, stores);
  SameTraffic(memory.StreamIn(), read_bytes, memory.StreamOut(), write_bytes, stores);
}

std::vector<Workload> MakeWorkloads(const Memory& memory, const Execution& execution) {
  std::vector<Workload> workloads;
  for (const KernelTable* backend : AvailableKernels()) {
    Execution on_backend = execution;
    on_backend.kernels = backend;
    AddBackend(memory, on_backend, workloads);
  }
  return workloads;
}

}  // namespace narrowfloat::bench
