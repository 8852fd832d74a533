// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/convention_writer.h"
#include "narrowfloat/io/detect_convention.h"

namespace narrowfloat::tools {

/// Returns `convention`. If the files do not name it, prints its reason to standard error.
io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention);

/// Prints to standard error the weights that lack an input scale, if readers need one.
void SayMissingInputScales(const std::string& verb, const io::ConventionWriter& writer);

}  // namespace narrowfloat::tools
