// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat::tools {

/// Parses --scheme. Its scale and amaxes apply to every tensor of a checkpoint, so that the library
/// accepts more of them than this command line. `verb` begins messages. Errors: as ParseQuantSpec;
/// InvalidArgument if the scale or its reciprocal is not positive and finite, or if an amax is
/// negative, NaN or infinite.
QuantSpec ParseScheme(const std::string& verb, const std::string& text);

/// Returns whether dequantizing yields values in the basis of the Hadamard transform: of tensors
/// that have only columnwise codes, with rht.
bool IsTransformed(const QuantSpec& spec);

}  // namespace narrowfloat::tools
