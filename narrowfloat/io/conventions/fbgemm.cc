// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {
    {".weight", ".weight_scale", ".weight"},
    {.codes = ".gate_up_proj",
     .scale = ".gate_up_proj_scale",
     .plain = ".gate_up_proj",
     .scales_of_columns = true},
    {.codes = ".down_proj",
     .scale = ".down_proj_scale",
     .plain = ".down_proj",
     .scales_of_columns = true},
};

}  // namespace

/// Describes FP8 with one scale per output, in weights [outputs, inputs] and in Llama 4's stacked
/// experts [experts, inputs, outputs]. A decoded code is multiplied by its scale.
constinit const ConventionRow kFbgemm{
    .name = "fbgemm_fp8", .other_names = {}, .weights = kWeights, .accessories = {}};

}  // namespace narrowfloat::io
