// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {
    {.codes = ".weight_packed",
     .scale = ".weight_scale",
     .plain = ".weight",
     .global = ".weight_global_scale",
     .global_scale = GlobalScale::kDivides,
     .evidence = Evidence::kName},
    {".weight_packed", ".weight_scale", ".weight"},
    {.codes = ".weight", .scale = ".weight_scale", .plain = ".weight", .evidence = Evidence::kFp8},
};

constexpr std::string_view kInputScales[] = {".input_scale"};
constexpr std::string_view kAccessories[] = {".input_global_scale"};

constexpr WrittenFormat
    kWritten[] =
        {
            {"FP8", "e4m3", BlockKind::kTensor, FileDType::kF32, ScaleShape::kOneItem, 2,
             FileDType::kF8E4M3,
             R"({"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"float-quantized","weights":{"num_bits":8,"type":"float","symmetric":true,"dynamic":false,"strategy":"tensor"},"input_activations":null}}})"},
            {"FP8_DYNAMIC", "e4m3", BlockKind::kRow, FileDType::kF32, ScaleShape::kMatrix, 2,
             FileDType::kF8E4M3,
             R"({"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"float-quantized","weights":{"num_bits":8,"type":"float","symmetric":true,"dynamic":false,"strategy":"channel"},"input_activations":{"num_bits":8,"type":"float","symmetric":true,"strategy":"token","dynamic":true}}}})"},
            {"FP8_BLOCK", "e4m3", BlockKind::kTile128, FileDType::kF32, ScaleShape::kMatrix, 2,
             FileDType::kF8E4M3,
             R"({"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"float-quantized","weights":{"num_bits":8,"type":"float","symmetric":true,"dynamic":false,"strategy":"block","block_structure":[128,128]},"input_activations":{"num_bits":8,"type":"float","symmetric":true,"group_size":128,"strategy":"group","dynamic":true}}}})"},
            {"MXFP8", "e4m3", BlockKind::kRow32, FileDType::kU8, ScaleShape::kMatrix, 2,
             FileDType::kF8E4M3,
             R"({"quant_method":"compressed-tensors","format":"mxfp8-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"mxfp8-quantized","weights":{"num_bits":8,"type":"float","symmetric":true,"dynamic":false,"strategy":"group","group_size":32,"scale_dtype":"torch.uint8"},"input_activations":null}}})"},
            {"MXFP4",
             "e2m1", BlockKind::kRow32, FileDType::kU8, ScaleShape::kMatrix, 1, FileDType::kU8, R"({"quant_method":"compressed-tensors","format":"mxfp4-pack-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"mxfp4-pack-quantized","weights":{"num_bits":4,"type":"float","symmetric":true,"dynamic":false,"strategy":"group","group_size":32,"scale_dtype":"torch.uint8"},"input_activations":null}}})"},
            {"NVFP4", "e2m1", BlockKind::kRow16, FileDType::kF8E4M3, ScaleShape::kMatrix, 0,
             FileDType::kU8,
             R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","quantization_status":"compressed","kv_cache_scheme":null,"config_groups":{"group_0":{"targets":["Linear"],"format":"nvfp4-pack-quantized","weights":{"num_bits":4,"type":"float","symmetric":true,"dynamic":false,"strategy":"tensor_group","group_size":16,"scale_dtype":"torch.float8_e4m3fn"},"input_activations":null}}})"},
};

}  // namespace

/// Describes files of llm-compressor. A decoded code is multiplied by its scale and divided by the
/// scale of the whole tensor, because quantization multiplies by it.
constinit const ConventionRow kCompressedTensors{.name = "compressed-tensors",
                                                 .other_names = {},
                                                 .weights = kWeights,
                                                 .accessories = kAccessories,
                                                 .input_scales = kInputScales,
                                                 .has_cache_scales = true,
                                                 .written = kWritten,
                                                 .refused_key = "transform_config",
                                                 .ignored = "ignore",
                                                 .ignored_by_module = true};

}  // namespace narrowfloat::io
