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

/// Quantizes groups of rows that lie one after another in `in`, each as if it were alone: its own
/// amax, scales and blocks. Group g counts its random numbers from 0 and adds g to the offset.
/// Shapes: `rows` says how many rows of the flattened input each group has, 0 included; their sum
/// is the input's rows. outs[g].shape is rows[g] x K. Where the buffers of the groups lie is the
/// caller's: apart, or one after another in larger ones, as long as none overlap.
/// Errors: InvalidArgument, before anything is written, if counts or shapes do not fit, if rows of
/// the input do not lie the same distance apart, or as Quantize.
/// Source: TransformerEngine's grouped quantization (nvte_group_quantize), without its multiples.
void GroupedQuantize(const ConstTensorView& in, std::span<const std::int64_t> rows,
                     std::span<const QuantizedView> outs, const Execution& execution = {});

/// The same for groups that lie anywhere and may differ in every dimension: outs[g].shape is that
/// of ins[g]. Errors: as above.
void GroupedQuantize(std::span<const ConstTensorView> ins, std::span<const QuantizedView> outs,
                     const Execution& execution = {});

/// The groups' views in packed buffers, to be handed to GroupedQuantize. `packed[role]` begins the
/// packed buffer of that role; roles that share storage share it there too.
std::vector<QuantizedView> BindGroups(const GroupedPlan& plan,
                                      const std::array<std::byte*, kRoleCount>& packed);

}  // namespace narrowfloat
