// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantizes the values of `in` by `out.spec`: another scheme, direction or layout of scales.
/// Shapes: in.shape is out.shape. The values are first rounded to the type `between`; fp32 holds
/// every decoded value exactly as Dequantize gives it.
/// Errors: InvalidArgument, before anything is written, if shapes differ, buffers are missing, or
/// `out` overlaps `in`.
/// Source: TransformerEngine's chain of dequantize and quantize; nvte_group_requantize with
/// bfloat16.
void Requantize(const ConstQuantizedView& in, const QuantizedView& out,
                DType between = DType::kFloat32, const Execution& execution = {});

/// Writes MXFP8 scales for the codes of block-scaled FP8 with power-of-two scales: the E8M0
/// exponent of each scale, repeated for the four MX blocks of a block and for the lines of a tile.
/// The scales are stored swizzled.
/// Shapes: `scales` is uint8, with the swizzled shape of MXFP8's rowwise_scale_inv in PlanQuantize,
/// for the direction's codes as they are stored. Padding becomes zero.
/// Errors: InvalidArgument if the scheme of `in` has no fp32 scales per block, `in` lacks the
/// direction, a scale is not a power of two of at least 2^-127, or `scales` differs or overlaps
/// `in`; Unsupported if this build has no MXFP8. Source: TransformerEngine
/// nvte_swizzle_block_scaling_to_mxfp8_scaling_factors.
void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction, const TensorView& scales,
                        const Execution& execution = {});

/// Returns the shape of `scales`. Errors: as BlockScalesToMxfp8, for `in` and `direction`.
Shape Mxfp8ScalesShape(const ConstQuantizedView& in, Direction direction);

/// Returns the grid of MXFP8's scales for `in`. Errors: Unsupported if this build has no MXFP8.
ScaleGrid Mxfp8Grid(const ConstQuantizedView& in, Direction direction);

/// Throws InvalidArgument for a scale that is not a value of E8M0. The message names its `line` and
/// `block`.
[[noreturn]] void RefuseBlockScale(std::size_t line, std::size_t block, float scale_inv);

}  // namespace narrowfloat
