// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/grouped_plan.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantizes groups of adjacent rows of `in` independently: each has its own amax, scales and
/// blocks. Group g counts its random numbers from 0 and adds g to the offset.
/// Shapes: `rows` has the number of rows of each group of the flattened input, 0 included; the sum
/// is the input's rows. outs[g].shape is rows[g] x K. The groups' buffers may be anywhere, also
/// adjacent in larger ones, as long as none overlap.
/// Errors: InvalidArgument, before anything is written, if counts or shapes do not fit, if rows of
/// the input are not equally spaced, if buffers of two groups overlap, or as Quantize.
/// Source: TransformerEngine's grouped quantization (nvte_group_quantize), without its multiples.
void GroupedQuantize(const ConstTensorView& in, std::span<const std::int64_t> rows,
                     std::span<const QuantizedView> outs, const Execution& execution = {});

/// Quantizes groups that may be anywhere and may differ in every dimension: outs[g].shape is
/// ins[g].shape. Errors: as above.
void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                     const Execution& execution = {});

/// Checks that groups of that many rows divide the rows of the flattened input, before their
/// outputs are allocated. GroupedQuantize checks it too. Errors: InvalidArgument.
void CheckGroupRows(std::span<const std::int64_t> rows, const ConstTensorView& in);

/// Returns the groups' views of packed buffers, for GroupedQuantize. `packed[role]` is the start of
/// the packed buffer of that role, on `device`; roles that share storage share it there too.
std::vector<QuantizedView> BindGroups(const GroupedPlan& plan,
                                      const std::array<std::byte*, kRoleCount>& packed,
                                      Device device = {});

}  // namespace narrowfloat
