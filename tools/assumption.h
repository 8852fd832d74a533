// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/convention_writer.h"
#include "narrowfloat/io/detect_convention.h"

namespace narrowfloat::tools {

/// Returns `convention`. Prints its reason to standard error if nothing in the files says so.
io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention);

/// Prints to standard error which weights lack a scale that readers of their format need.
void SayMissingInputScales(const std::string& verb, const io::ConventionWriter& writer);

}  // namespace narrowfloat::tools
