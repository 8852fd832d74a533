// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {{".weight", ".weight_scale", ".weight"}};

}  // namespace

/// FP8 with a scale per output row.
constinit const ConventionRow kFbgemm{
    .name = "fbgemm_fp8", .other_names = {}, .weights = kWeights, .accessories = {}};

}  // namespace narrowfloat::io
