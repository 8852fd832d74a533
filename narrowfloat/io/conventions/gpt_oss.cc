// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {{.codes = "_blocks",
                                     .scale = "_scales",
                                     .plain = "",
                                     .plain_is_transposed = true,
                                     .blocked = true,
                                     .evidence = Evidence::kBytePairs}};

constexpr WrittenFormat kWritten[] = {{"MXFP4", "e2m1", BlockKind::kRow32, FileDType::kU8,
                                       ScaleShape::kMatrix, 0, FileDType::kU8,
                                       R"({"quant_method":"mxfp4"})"}};

}  // namespace

/// Describes the experts of gpt-oss: MXFP4 along the inputs; the float model has them transposed. A
/// decoded code is multiplied by its scale.
constinit const ConventionRow kGptOss{.name = "mxfp4",
                                      .other_names = {},
                                      .weights = kWeights,
                                      .accessories = {},
                                      .written = kWritten,
                                      .ignored = "modules_to_not_convert"};

}  // namespace narrowfloat::io
