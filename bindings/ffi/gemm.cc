// SPDX-License-Identifier: Apache-2.0
// nf_gemm_ffi: the product of two matrices of codes, or of one pair per group.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "bindings/ffi/gemm_operand.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

using Result = ffi::Result<ffi::AnyBuffer>;

/// Returns the sizes of the groups; without groups, one size of 0, which no operand uses.
std::vector<std::int64_t> SizesOf(const ffi::AnyBuffer& group_sizes) {
  if (group_sizes.element_count() == 0) return {0};
  CheckDType({kGemmVerb, "group_sizes"}, group_sizes, ffi::S32);
  const auto* begin = static_cast<const std::int32_t*>(group_sizes.untyped_data());
  std::vector<std::int64_t> sizes(begin, begin + group_sizes.element_count());
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] >= 0) continue;
    throw InvalidArgument(
        fmt::format("{}: group {} must have 0 rows or more, got {}", kGemmVerb, g, sizes[g]));
  }
  return sizes;
}

/// The parts of the output and of the bias, one per group; the parts are adjacent.
struct Results {
  std::vector<TensorView> outs;
  std::vector<ConstTensorView> biases;
};

Results SplitResults(ffi::AnyBuffer& output, const ffi::AnyBuffer& bias,
                     const std::vector<Shape>& shapes) {
  Results results;
  std::size_t items = 0, bias_items = 0;
  for (const Shape& shape : shapes) {
    items += FlattenShape(shape).Size();
    bias_items += static_cast<std::size_t>(shape[1]);
  }
  TensorView out = MutableMatrixView({kGemmVerb, "the output"}, output, {1, items});
  const bool has_bias = bias.element_count() > 0;
  if (has_bias) CheckCount({kGemmVerb, "bias"}, bias, bias_items);
  ConstTensorView addend = FlatView({kGemmVerb, "bias"}, bias);
  for (const Shape& shape : shapes) {
    out.shape = shape;
    results.outs.push_back(out);
    out.data += FlattenShape(shape).Size() * ffi::ByteWidth(output.element_type());
    if (!has_bias) continue;
    addend.shape = {shape[1]};
    results.biases.push_back(addend);
    addend.data += static_cast<std::size_t>(shape[1]) * ffi::ByteWidth(bias.element_type());
  }
  return results;
}

void Multiply(const Operand& lhs, const Operand& rhs, const ffi::AnyBuffer& bias,
              const ffi::AnyBuffer& group_sizes, ffi::AnyBuffer& output,
              const Execution& execution) {
  const bool is_grouped = group_sizes.element_count() > 0;
  const std::vector<std::int64_t> sizes = SizesOf(group_sizes);
  const GemmLayout layout = LayoutOf(lhs, rhs);
  OperandBuffers lhs_buffers(lhs, sizes.size(), execution);
  OperandBuffers rhs_buffers(rhs, sizes.size(), execution);
  std::vector<ConstQuantizedView> a, b;
  std::vector<Shape> shapes;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    a.push_back(lhs_buffers.Take(g, sizes[g]));
    b.push_back(rhs_buffers.Take(g, sizes[g]));
    shapes.push_back(QgemmShape(a[g], b[g], layout, kGemmVerb));
  }
  lhs_buffers.CheckAllTaken(is_grouped);
  rhs_buffers.CheckAllTaken(is_grouped);
  const Results results = SplitResults(output, bias, shapes);
  if (is_grouped) {
    const GroupedGemmOptions options{
        .layout = layout, .biases = results.biases, .mode = GemmMode::kReproducible};
    GroupedQgemm(a, b, results.outs, options, execution);
    return;
  }
  GemmOptions options{.layout = layout, .mode = GemmMode::kReproducible};
  if (!results.biases.empty()) options.bias = results.biases[0];
  Qgemm(a[0], b[0], results.outs[0], options, execution);
}

ffi::Error GemmFFI(ffi::ThreadPool threads, ffi::AnyBuffer lhs, ffi::AnyBuffer lhs_scale_inv,
                   ffi::AnyBuffer lhs_amax, ffi::AnyBuffer rhs, ffi::AnyBuffer rhs_scale_inv,
                   ffi::AnyBuffer rhs_amax, ffi::AnyBuffer bias, ffi::AnyBuffer group_sizes,
                   Result output, std::string_view lhs_spec, std::int64_t lhs_rows,
                   std::int64_t lhs_cols, bool lhs_turned, std::string_view rhs_spec,
                   std::int64_t rhs_rows, std::int64_t rhs_cols, bool rhs_turned) {
  return RunOn(threads, [&](const Execution& execution) {
    const Operand left{kLhsNames, lhs,      lhs_scale_inv, lhs_amax, SpecOfOneDirection(lhs_spec),
                       lhs_rows,  lhs_cols, lhs_turned};
    const Operand right{kRhsNames, rhs,      rhs_scale_inv, rhs_amax, SpecOfOneDirection(rhs_spec),
                        rhs_rows,  rhs_cols, rhs_turned};
    Multiply(left, right, bias, group_sizes, *output, execution);
  });
}

auto Bind() {
  return WithOperandAttributes(
      ffi::Ffi::Bind()
          .Ctx<ffi::ThreadPool>()
          .Arg<ffi::AnyBuffer>()    // lhs
          .Arg<ffi::AnyBuffer>()    // lhs_scale_inv
          .Arg<ffi::AnyBuffer>()    // lhs_amax
          .Arg<ffi::AnyBuffer>()    // rhs
          .Arg<ffi::AnyBuffer>()    // rhs_scale_inv
          .Arg<ffi::AnyBuffer>()    // rhs_amax
          .Arg<ffi::AnyBuffer>()    // bias; an empty buffer means no bias
          .Arg<ffi::AnyBuffer>()    // group_sizes; without items if there are no groups
          .Ret<ffi::AnyBuffer>());  // output
}

}  // namespace

NF_EXPORT_HANDLER(nf_gemm_ffi, GemmFFI, Bind());

}  // namespace narrowfloat::xla_ffi
