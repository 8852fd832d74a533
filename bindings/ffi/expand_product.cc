// SPDX-License-Identifier: Apache-2.0
// nf_expand_product_ffi: the operands of a product as bfloat16, for XLA to multiply.
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "bindings/ffi/gemm_operand.h"
#include "narrowfloat/ops/gemm_expansion.h"
#include "narrowfloat/ops/qgemm.h"

namespace narrowfloat::xla_ffi {
namespace {

using Result = ffi::Result<ffi::AnyBuffer>;

/// Writes the operand's items; zeros if `operand` is null, because there is no plan.
void WriteItems(BufferName what, ffi::AnyBuffer& items, std::size_t count,
                const OperandExpansion* operand, const CallExecution& execution) {
  CheckDType(what, items, ffi::BF16);
  CheckCount(what, items, count);
  if (operand == nullptr) return ZeroFrom(execution, items);
  AdviseHugePages(items);
  Expand(*operand, static_cast<std::byte*>(items.untyped_data()), execution);
}

ffi::Error ExpandProductFFI(ffi::ThreadPool threads, ffi::AnyBuffer lhs,
                            ffi::AnyBuffer lhs_scale_inv, ffi::AnyBuffer lhs_amax,
                            ffi::AnyBuffer rhs, ffi::AnyBuffer rhs_scale_inv,
                            ffi::AnyBuffer rhs_amax, Result lhs_items, Result rhs_items,
                            Result factor, Result is_lossless, std::string_view lhs_spec,
                            std::int64_t lhs_rows, std::int64_t lhs_cols, bool lhs_turned,
                            std::string_view rhs_spec, std::int64_t rhs_rows, std::int64_t rhs_cols,
                            bool rhs_turned) {
  return RunOn(threads, [&](const CallExecution& execution) {
    const Operand left{kLhsNames, lhs,      lhs_scale_inv, lhs_amax, SpecOfOneDirection(lhs_spec),
                       lhs_rows,  lhs_cols, lhs_turned};
    const Operand right{kRhsNames, rhs,      rhs_scale_inv, rhs_amax, SpecOfOneDirection(rhs_spec),
                        rhs_rows,  rhs_cols, rhs_turned};
    const GemmLayout layout = LayoutOf(left, right);
    OperandBuffers left_buffers(left, 1, execution), right_buffers(right, 1, execution);
    const ConstQuantizedView a = left_buffers.Take(0, 0), b = right_buffers.Take(0, 0);
    left_buffers.CheckAllTaken(false);
    right_buffers.CheckAllTaken(false);
    float* stored_factor = MutableFloats({kGemmVerb, "factor"}, *factor, 1);
    CheckDType({kGemmVerb, "is_lossless"}, *is_lossless, ffi::PRED);
    CheckCount({kGemmVerb, "is_lossless"}, *is_lossless, 1);
    const std::optional<ProductExpansion> plan =
        HasBFloat16Products() ? PlanQgemmExpansion(a, b, layout) : std::nullopt;
    const std::optional<double> number = plan ? plan->NormalFactor() : std::nullopt;
    WriteItems({kGemmVerb, "items of lhs"}, *lhs_items, lhs.element_count(),
               number ? &plan->a : nullptr, execution);
    WriteItems({kGemmVerb, "items of rhs"}, *rhs_items, rhs.element_count(),
               number ? &plan->b : nullptr, execution);
    *stored_factor = static_cast<float>(number.value_or(0.0));
    *static_cast<bool*>(is_lossless->untyped_data()) = number.has_value();
  });
}

auto Bind() {
  return WithOperandAttributes(ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .Arg<ffi::AnyBuffer>()    // lhs
                                   .Arg<ffi::AnyBuffer>()    // lhs_scale_inv
                                   .Arg<ffi::AnyBuffer>()    // lhs_amax
                                   .Arg<ffi::AnyBuffer>()    // rhs
                                   .Arg<ffi::AnyBuffer>()    // rhs_scale_inv
                                   .Arg<ffi::AnyBuffer>()    // rhs_amax
                                   .Ret<ffi::AnyBuffer>()    // lhs_items
                                   .Ret<ffi::AnyBuffer>()    // rhs_items
                                   .Ret<ffi::AnyBuffer>()    // factor
                                   .Ret<ffi::AnyBuffer>());  // is_lossless
}

}  // namespace

NF_EXPORT_HANDLER(nf_expand_product_ffi, ExpandProductFFI, Bind());

}  // namespace narrowfloat::xla_ffi
