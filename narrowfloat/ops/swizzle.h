// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Copies `in` to `out` and permutes every scale_inv from compact to the 128x4 tiles that GEMMs
/// read. The specs differ in `swizzled` alone; shapes and sizes are equal. Swizzle zeroes the
/// padding, Unswizzle copies it, as TransformerEngine's kernels do. Codes are copied unless both
/// views have the same memory. A direction without buffers in `in` is skipped. Errors:
/// InvalidArgument if the scheme has no such layout, a spec's `swizzled` is wrong for the direction
/// of the copy, `in` has no direction or only codes or only scales of one, or a buffer differs from
/// the plan or overlaps another one. Source: TransformerEngine nvte_swizzle_scaling_factors and
/// nvte_unswizzle_scaling_factors.
void Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
             const Execution& execution = {});
/// Does the reverse of Swizzle.
void Unswizzle(const ConstQuantizedView& in, const QuantizedView& out,
               const Execution& execution = {});

}  // namespace narrowfloat
