// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/gemm_expansion.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// The bytes of the input, repeated without end; zeros if the input is empty.
class Source {
 public:
  Source(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint8_t Next() { return size_ == 0 ? std::uint8_t{0} : data_[next_++ % size_]; }
  std::int64_t UpTo(std::int64_t limit) { return (Next() | Next() << 8) % (limit + 1); }

 private:
  const std::uint8_t* data_;
  std::size_t size_, next_ = 0;
};

/// A tensor with arbitrary codes and scales. Each buffer has memory of exactly its size.
struct Tensor {
  Tensor(const SchemeInfo& scheme, const Shape& shape, Source& source) {
    QuantSpec spec;
    spec.scheme = &scheme;
    spec.columnwise = true;
    view = BindBuffers<QuantizedView>(spec, shape, [&](const BufferPlan& buffer) {
      auto& bytes = memory[static_cast<std::size_t>(buffer.storage)];
      if (buffer.storage == buffer.role) {
        bytes.resize(BufferBytes(buffer));
        std::ranges::generate(bytes, [&] { return static_cast<std::byte>(source.Next()); });
      }
      return bytes.data();
    });
  }
  QuantizedView view;
  std::array<std::vector<std::byte>, kRoleCount> memory;
};

std::vector<std::byte> Multiply(const Tensor& a, const Tensor& b, const Shape& shape, DType dtype,
                                const GemmOptions& options, const Execution& execution) {
  std::vector<std::byte> out(FlattenShape(shape).Size() * ItemSize(dtype), std::byte{0x3C});
  Qgemm(a.view, b.view, {out.data(), dtype, shape, {}, {}}, options, execution);
  return out;
}

void ExpandBoth(const Tensor& a, const Tensor& b, GemmLayout layout) {
  const auto plan = PlanQgemmExpansion(a.view, b.view, layout);
  if (!plan) return;
  for (const OperandExpansion* operand : {&plan->a, &plan->b}) {
    std::vector<std::byte> items(operand->shape.Size() * ItemSize(DType::kBFloat16));
    Expand(*operand, items.data(), {.threads = 1});
  }
}

void Run(Source source) {
  const SchemeInfo& a_scheme = kSchemes[source.Next() % kSchemes.size()];
  const SchemeInfo& b_scheme = kSchemes[source.Next() % kSchemes.size()];
  const auto layout = static_cast<GemmLayout>(source.Next() % 3);
  constexpr DType kResults[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const DType dtype = kResults[source.Next() % 3];
  const std::int64_t m = source.UpTo(100), n = source.UpTo(100), k = source.UpTo(300);
  GemmOptions options{.layout = layout, .mode = GemmMode::kReproducible};
  if (source.Next() % 2 == 1) options.output = GemmOutput::kAccumulate;
  std::vector<float> bias(static_cast<std::size_t>(n), static_cast<float>(source.Next()));
  const TensorView bias_view{
      reinterpret_cast<std::byte*>(bias.data()), DType::kFloat32, {n}, {}, {}};
  if (source.Next() % 2 == 1) options.bias = bias_view;
  const bool a_rows = layout != GemmLayout::kNT, b_rows = layout == GemmLayout::kTN;
  const Tensor a(a_scheme, a_rows ? Shape{m, k} : Shape{k, m}, source);
  const Tensor b(b_scheme, b_rows ? Shape{n, k} : Shape{k, n}, source);
  const auto want =
      Multiply(a, b, {m, n}, dtype, options, {.threads = 1, .kernels = &ScalarKernels()});
  if (Multiply(a, b, {m, n}, dtype, options, {.threads = 1}) != want) std::abort();
  ExpandBoth(a, b, layout);
}

}  // namespace
}  // namespace narrowfloat

/// Checks that micro-kernels give the reference's bytes. Runs expansions, but compares no result.
/// The first bytes choose schemes, layout, sizes and terms. All other bytes are codes and scales.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    narrowfloat::Run({data, size});
  } catch (const narrowfloat::InvalidArgument&) {
    return 0;  // schemes of two families, or odd sizes of packed codes
  }
  return 0;
}
