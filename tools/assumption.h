// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/detect_convention.h"

namespace narrowfloat::tools {

/// Returns `convention`. Prints its reason to standard error if nothing in the files says so.
io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention);

}  // namespace narrowfloat::tools
