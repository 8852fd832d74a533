// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/c_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "narrowfloat/c_api/status.h"
#include "narrowfloat/c_api/structs.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/version.h"

namespace narrowfloat::c_api {
namespace {

// The header repeats the numbers for C; these assertions compare them with the types.
static_assert(NF_FLOAT32 == static_cast<int>(DType::kFloat32));
static_assert(NF_FLOAT16 == static_cast<int>(DType::kFloat16));
static_assert(NF_BFLOAT16 == static_cast<int>(DType::kBFloat16));
static_assert(NF_UINT8 == static_cast<int>(DType::kUInt8));
static_assert(NF_ROWWISE_DATA == static_cast<int>(Role::kRowwiseData));
static_assert(NF_ROWWISE_SCALE_INV == static_cast<int>(Role::kRowwiseScaleInv));
static_assert(NF_COLUMNWISE_DATA == static_cast<int>(Role::kColumnwiseData));
static_assert(NF_COLUMNWISE_SCALE_INV == static_cast<int>(Role::kColumnwiseScaleInv));
static_assert(NF_SCALE == static_cast<int>(Role::kScale));
static_assert(NF_AMAX_ROWWISE == static_cast<int>(Role::kAmaxRowwise));
static_assert(NF_AMAX_COLUMNWISE == static_cast<int>(Role::kAmaxColumnwise));
static_assert(NF_AMAX_COLUMNWISE + 1 == kRoleCount);

QuantSpec ReadSpec(const char* verb, const char* text) {
  if (text == nullptr) throw InvalidArgument(fmt::format("{}: the spec must not be NULL", verb));
  return ParseQuantSpec(text);
}

Shape ReadShape(const char* verb, const std::int64_t* shape, std::int32_t rank) {
  if (rank < 0 || rank > NF_MAX_RANK) {
    throw InvalidArgument(
        fmt::format("{}: the rank must be from 0 to {}, got {}", verb, NF_MAX_RANK, rank));
  }
  if (shape == nullptr && rank > 0) {
    throw InvalidArgument(fmt::format("{}: the shape must not be NULL", verb));
  }
  return shape == nullptr ? Shape{} : Shape(shape, shape + rank);
}

DType ReadDType(const char* verb, std::int32_t dtype) {
  if (dtype >= NF_FLOAT32 && dtype <= NF_UINT8) return static_cast<DType>(dtype);
  throw InvalidArgument(fmt::format("{}: the dtype must be from {} to {}, got {}", verb,
                                    static_cast<int>(NF_FLOAT32), static_cast<int>(NF_UINT8),
                                    dtype));
}

TensorView ReadTensor(const char* verb, const nf_tensor* given) {
  const auto tensor = ReadStruct(verb, "the tensor", given, CallerSize(verb, "the tensor", given));
  TensorView view{static_cast<std::byte*>(tensor.data),
                  ReadDType(verb, tensor.dtype),
                  ReadShape(verb, tensor.shape, tensor.rank),
                  {}};
  if (tensor.strides != nullptr) view.strides.assign(tensor.strides, tensor.strides + tensor.rank);
  return view;
}

/// Checks that a field reserved for later versions is 0.
void CheckReserved(const char* verb, const char* name, std::int32_t reserved) {
  if (reserved == 0) return;
  throw Unsupported(fmt::format("{}: reserved of {} must be 0, got {}", verb, name, reserved));
}

Execution ExecutionOf(const char* verb, const nf_execution* given) {
  if (given == nullptr) return {};
  const auto execution =
      ReadStruct(verb, "the execution", given, CallerSize(verb, "the execution", given));
  CheckReserved(verb, "the execution", execution.reserved);
  return {.threads = execution.threads, .noop = execution.noop};
}

/// Binds one of the caller's buffers to its place in the plan.
template <class Byte>
void Bind(const char* verb, const nf_buffer& buffer, const std::vector<BufferPlan>& plan,
          BasicQuantizedView<Byte>& view) {
  const auto planned = std::ranges::find_if(
      plan, [&](const BufferPlan& entry) { return static_cast<int>(entry.role) == buffer.role; });
  if (planned == plan.end()) {
    throw InvalidArgument(fmt::format("{}: buffers must have roles that {} plans, got role {}",
                                      verb, PrintQuantSpec(view.spec), buffer.role));
  }
  CheckReserved(verb, "a buffer", buffer.reserved);
  const std::string_view name = RoleName(planned->role);
  if (buffer.bytes != BufferBytes(*planned)) {
    throw InvalidArgument(fmt::format("{}: {} must have {} bytes, got {}", verb, name,
                                      BufferBytes(*planned), buffer.bytes));
  }
  if (view[planned->role].data != nullptr) {
    throw InvalidArgument(fmt::format("{}: {} must be given once, got two", verb, name));
  }
  view[planned->role] = {static_cast<Byte*>(buffer.data), planned->dtype, planned->shape};
}

template <class Byte>
BasicQuantizedView<Byte> QuantizedOf(const char* verb, const char* spec, const Shape& shape,
                                     const nf_buffer* buffers, std::size_t count) {
  BasicQuantizedView<Byte> view{ReadSpec(verb, spec), shape, {}};
  const std::vector<BufferPlan> plan = PlanQuantize(view.spec, shape);
  const std::size_t size = CallerSize(verb, "a buffer", buffers);
  for (std::size_t i = 0; i < count; ++i) {
    Bind(verb, ReadStruct(verb, "a buffer", buffers, size, i), plan, view);
  }
  for (const BufferPlan& planned : plan) {
    if (view[planned.role].data == nullptr && planned.storage != planned.role) {
      view[planned.role] = view[planned.storage];
    }
  }
  return view;
}

void StorePlan(const BufferPlan& planned, std::size_t size, std::byte* entry) {
  nf_buffer_plan out{};
  out.struct_size = size;
  out.role = static_cast<std::int32_t>(planned.role);
  out.storage = static_cast<std::int32_t>(planned.storage);
  out.dtype = static_cast<std::int32_t>(planned.dtype);
  out.rank = static_cast<std::int32_t>(planned.shape.size());
  std::ranges::copy(planned.shape, out.shape);
  out.bytes = BufferBytes(planned);
  StoreStruct(out, size, entry);
}

void StorePlans(const std::vector<BufferPlan>& planned, nf_buffer_plan* plan, std::size_t* count) {
  constexpr const char* kVerb = "nf_plan";
  const std::size_t room = std::exchange(*count, planned.size());
  if (plan == nullptr) return;
  if (room < planned.size()) {
    throw InvalidArgument(
        fmt::format("{}: the plan needs room for {} buffers, got {}", kVerb, planned.size(), room));
  }
  const std::size_t size = CallerSize(kVerb, "the plan", plan);
  auto* entry = reinterpret_cast<std::byte*>(plan);
  for (const BufferPlan& buffer : planned) {
    StorePlan(buffer, size, entry);
    entry += size;
  }
}

}  // namespace
}  // namespace narrowfloat::c_api

using namespace narrowfloat;         // NOLINT: the functions below are outside any namespace
using namespace narrowfloat::c_api;  // NOLINT

const char* nf_version(void) {
  return NF_VERSION;
}

const char* nf_last_error(void) {
  return LastError();
}

int32_t nf_plan(const char* spec, const int64_t* shape, int32_t rank, nf_buffer_plan* plan,
                size_t* count) {
  return Guard([&] {
    if (count == nullptr) throw InvalidArgument("nf_plan: the count must not be NULL");
    StorePlans(PlanQuantize(ReadSpec("nf_plan", spec), ReadShape("nf_plan", shape, rank)), plan,
               count);
  });
}

int32_t nf_quantize(const char* spec, const nf_tensor* in, const nf_buffer* buffers, size_t count,
                    const nf_execution* execution) {
  return Guard([&] {
    constexpr const char* kVerb = "nf_quantize";
    const ConstTensorView input = ReadTensor(kVerb, in);
    const auto out = QuantizedOf<std::byte>(kVerb, spec, input.shape, buffers, count);
    Quantize(input, out, ExecutionOf(kVerb, execution));
  });
}

int32_t nf_dequantize(const char* spec, const nf_buffer* buffers, size_t count,
                      const nf_tensor* out, const nf_execution* execution) {
  return Guard([&] {
    constexpr const char* kVerb = "nf_dequantize";
    const TensorView output = ReadTensor(kVerb, out);
    const auto in = QuantizedOf<const std::byte>(kVerb, spec, output.shape, buffers, count);
    Dequantize(in, output, ExecutionOf(kVerb, execution));
  });
}
