// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {
    {.codes = ".weight",
     .scale = ".weight_scale_inv",
     .plain = ".weight",
     .evidence = Evidence::kFp8},
    {.codes = ".weight",  // DeepSeek-V4
     .scale = ".scale",
     .plain = ".weight",
     .evidence = Evidence::kFp8},
    {.codes = ".weight",  // Mistral
     .scale = ".qscale_weight",
     .plain = ".weight",
     .evidence = Evidence::kFp8},
    {".weight", ".weight_scale", ".weight"},  // AutoFP8, vLLM
    {.codes = ".gate_up_proj",
     .scale = ".gate_up_proj_scale_inv",
     .plain = ".gate_up_proj",
     .evidence = Evidence::kFp8},
    {.codes = ".down_proj",
     .scale = ".down_proj_scale_inv",
     .plain = ".down_proj",
     .evidence = Evidence::kFp8},
};
constexpr WeightNames kV4Weights[] = {
    {.codes = ".weight", .scale = ".scale", .plain = ".weight", .evidence = Evidence::kInt8Pairs}};

constexpr std::string_view kInputScales[] = {".activation_scale", ".input_scale", ".qscale_act"};
constexpr std::string_view kAccessories[] = {"_proj_activation_scale"};

// Scales of the whole tensor, which exist only in files of other conventions.
constexpr std::string_view kRefused[] = {".weight_scale_2", ".weight_global_scale"};

constexpr WrittenFormat kBlockUe8m0{
    "block ue8m0",
    "e4m3",
    BlockKind::kTile128,
    FileDType::kF8E8M0,
    ScaleShape::kMatrix,
    0,
    FileDType::kF8E4M3,
    R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0","weight_block_size":[128,128]})"};

constexpr WrittenFormat kWritten[] = {
    {"block", "e4m3", BlockKind::kTile128, FileDType::kF32, ScaleShape::kMatrix, 0,
     FileDType::kF8E4M3,
     R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128]})"},
    kBlockUe8m0,
    {"tensor", "e4m3", BlockKind::kTensor, FileDType::kF32, ScaleShape::kScalar, 0,
     FileDType::kF8E4M3,
     R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":null})"},
    {"mxfp8", "e4m3", BlockKind::kRow32, FileDType::kU8, ScaleShape::kMatrix, 0, FileDType::kF8E4M3,
     R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0","weight_block_size":[1,32]})"},
};

constexpr WrittenFormat kWrittenAsMxfp8[] = {
    {"mxfp8", "e4m3", BlockKind::kRow32, FileDType::kU8, ScaleShape::kMatrix, 0, FileDType::kF8E4M3,
     R"({"quant_method":"mxfp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0","weight_block_size":[1,32]})"},
};

constexpr WrittenFormat kWrittenAsV4[] = {
    kBlockUe8m0,
    {"fp4 experts", "e2m1", BlockKind::kRow32, FileDType::kF8E8M0, ScaleShape::kMatrix, 0,
     FileDType::kI8,
     R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","scale_fmt":"ue8m0","expert_dtype":"fp4"})",
     "", "", true},
};

}  // namespace

/// Describes files of DeepSeek (block FP8) and files with the same names: per-tensor FP8, MXFP8,
/// DeepSeek-V4. A decoded code is multiplied by its scale, even if the name ends in _inv.
constinit const ConventionRow kDeepSeek{.name = "fp8",
                                        .other_names = {},
                                        .weights = kWeights,
                                        .accessories = kAccessories,
                                        .input_scales = kInputScales,
                                        .has_cache_scales = true,
                                        .written = kWritten,
                                        .refused = kRefused,
                                        .ignored = "modules_to_not_convert",
                                        .kept_key = "scale_fmt",
                                        .spreads_scales = true};

/// Describes MXFP8 with the same names, for loaders that expect the quant_method mxfp8.
constinit const ConventionRow kMxfp8{.name = "mxfp8",
                                     .other_names = {},
                                     .weights = kWeights,
                                     .accessories = kAccessories,
                                     .input_scales = kInputScales,
                                     .has_cache_scales = true,
                                     .written = kWrittenAsMxfp8,
                                     .refused = kRefused,
                                     .ignored = "modules_to_not_convert"};

/// Describes files of DeepSeek-V4: other names of scales, and experts in FP4 besides block FP8.
constinit const ConventionRow kDeepSeekV4{.name = "deepseek-v4",
                                          .other_names = {},
                                          .weights = kV4Weights,
                                          .accessories = {},
                                          .written = kWrittenAsV4,
                                          .ignored = "modules_to_not_convert",
                                          .mixes = true,
                                          .spreads_scales = true};

}  // namespace narrowfloat::io
