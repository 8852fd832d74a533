// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr std::string_view kOtherNames[] = {"modelopt_fp4", "modelopt_fp8"};

constexpr WeightNames kWeights[] = {
    {.codes = ".weight",
     .scale = ".weight_scale",
     .plain = ".weight",
     .global = ".weight_scale_2",
     .global_scale = GlobalScale::kMultiplies,
     .evidence = Evidence::kBytes},
    {".weight", ".weight_scale", ".weight"},
    // Stacked experts: their parameters have no module name before the suffix.
    {.codes = ".gate_up_proj",
     .scale = ".gate_up_proj_weight_scale",
     .plain = ".gate_up_proj",
     .global = ".gate_up_proj_weight_scale_2",
     .global_scale = GlobalScale::kMultiplies,
     .is_written = false,
     .evidence = Evidence::kBytes},
    {.codes = ".down_proj",
     .scale = ".down_proj_weight_scale",
     .plain = ".down_proj",
     .global = ".down_proj_weight_scale_2",
     .global_scale = GlobalScale::kMultiplies,
     .is_written = false,
     .evidence = Evidence::kBytes},
    {.codes = ".gate_up_proj",
     .scale = ".gate_up_proj_weight_scale",
     .plain = ".gate_up_proj",
     .is_written = false},
    {.codes = ".down_proj",
     .scale = ".down_proj_weight_scale",
     .plain = ".down_proj",
     .is_written = false},
};

constexpr std::string_view kInputScale = ".input_scale";
constexpr std::string_view kInputScales[] = {kInputScale};
constexpr std::string_view kAccessories[] = {"_proj_input_scale"};
constexpr std::string_view kRefused[] = {".pre_quant_scale",  // of AWQ: multiplies inputs
                                         "_proj_pre_quant_scale",
                                         // of SVDQuant: their product is added to the weight
                                         "svdquant_lora_a", "svdquant_lora_b"};

constexpr WrittenFormat kWritten[] = {
    {"FP8", "e4m3", BlockKind::kTensor, FileDType::kF32, ScaleShape::kScalar, 1, FileDType::kF8E4M3,
     R"({"quant_method":"modelopt","quant_algo":"FP8","producer":{"name":"modelopt","version":"0.47.0"}})",
     R"({"producer":{"name":"modelopt","version":"0.47.0"},"quantization":{"quant_algo":"FP8","kv_cache_quant_algo":null}})",
     kInputScale},
    {"FP8_PER_CHANNEL_PER_TOKEN", "e4m3", BlockKind::kRow, FileDType::kF32, ScaleShape::kVector, 1,
     FileDType::kF8E4M3,
     R"({"quant_method":"modelopt","quant_algo":"FP8_PER_CHANNEL_PER_TOKEN","producer":{"name":"modelopt","version":"0.47.0"}})",
     R"({"producer":{"name":"modelopt","version":"0.47.0"},"quantization":{"quant_algo":"FP8_PER_CHANNEL_PER_TOKEN","kv_cache_quant_algo":null}})"},
    {"FP8_PB_WO", "e4m3", BlockKind::kTile128, FileDType::kF32, ScaleShape::kTwoPairs, 1,
     FileDType::kF8E4M3,
     R"({"quant_method":"modelopt","quant_algo":"FP8_PB_WO","producer":{"name":"modelopt","version":"0.47.0"}})",
     R"({"producer":{"name":"modelopt","version":"0.47.0"},"quantization":{"quant_algo":"FP8_PB_WO","kv_cache_quant_algo":null}})"},
    {"MXFP8", "e4m3", BlockKind::kRow32, FileDType::kU8, ScaleShape::kMatrix, 1, FileDType::kF8E4M3,
     R"({"quant_method":"modelopt","quant_algo":"MXFP8","producer":{"name":"modelopt","version":"0.47.0"},"group_size":32})",
     R"({"producer":{"name":"modelopt","version":"0.47.0"},"quantization":{"quant_algo":"MXFP8","kv_cache_quant_algo":null,"group_size":32}})"},
    {"W4A16_NVFP4", "e2m1", BlockKind::kRow16, FileDType::kF8E4M3, ScaleShape::kMatrix, 0,
     FileDType::kU8,
     R"({"quant_method":"modelopt","quant_algo":"W4A16_NVFP4","producer":{"name":"modelopt","version":"0.47.0"},"group_size":16})",
     R"({"producer":{"name":"modelopt","version":"0.47.0"},"quantization":{"quant_algo":"W4A16_NVFP4","kv_cache_quant_algo":null,"group_size":16}})"},
};

}  // namespace

/// Describes files of NVIDIA ModelOpt. A decoded code is multiplied by its scales.
constinit const ConventionRow kModelOpt{.name = "modelopt",
                                        .other_names = kOtherNames,
                                        .weights = kWeights,
                                        .accessories = kAccessories,
                                        .input_scales = kInputScales,
                                        .has_cache_scales = true,
                                        .written = kWritten,
                                        .refused = kRefused,
                                        .ignored = "ignore"};

}  // namespace narrowfloat::io
