// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::config {

/// One --include or --exclude: an fnmatch pattern for a tensor's full name.
struct SelectionRule {
  enum class Action { kInclude, kExclude };
  Action action;
  std::string glob;
};

/// Whether the default quantizes a tensor: a matrix named like the weight of a linear layer. Left
/// alone are norms, biases, embeddings, convolutions, output heads, routers and vectors. Only whole
/// components of the dotted name are compared: `mlp.gate` is a router, `mlp.gate_proj` is not.
bool IsLinearWeight(std::string_view name, const Shape& shape);

/// Whether a tensor is quantized: never without a float type to quantize from (`dtype`); else as
/// the last rule that matches says; else as IsLinearWeight does.
bool IsSelected(const std::vector<SelectionRule>& rules, const std::string& name,
                std::optional<DType> dtype, const Shape& shape);

}  // namespace narrowfloat::config
