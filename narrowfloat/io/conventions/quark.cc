// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {
namespace {

constexpr WeightNames kWeights[] = {{.codes = ".weight",
                                     .scale = ".weight_scale",
                                     .plain = ".weight",
                                     .evidence = Evidence::kBytePairs}};

constexpr std::string_view kInputScales[] = {".input_scale"};

}  // namespace

/// Describes files of AMD Quark. A decoded code is multiplied by its scale.
constinit const ConventionRow kQuark{.name = "quark",
                                     .other_names = {},
                                     .weights = kWeights,
                                     .accessories = {},
                                     .input_scales = kInputScales,
                                     .has_cache_scales = true};

}  // namespace narrowfloat::io
