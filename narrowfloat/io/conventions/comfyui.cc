// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {
    {".weight", ".scale_weight", ".weight"},
    {".weight", ".weight_scale", ".weight", ".weight_scale_2", GlobalScale::kMultiplies},
    {".weight", ".weight_scale", ".weight"},
};

constexpr std::string_view kAccessories[] = {".scale_input", ".input_scale", ".comfy_quant",
                                             "scaled_fp8"};

}  // namespace

/// Files of ComfyUI, old spelling and new.
constinit const ConventionRow kComfyUi{
    .name = "comfyui", .other_names = {}, .weights = kWeights, .accessories = kAccessories};

}  // namespace narrowfloat::io
