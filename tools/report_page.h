// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/command.h"

namespace narrowfloat::tools {

/// Returns one self-contained HTML page that shows the object of `report --json`: a table that can
/// be sorted, worst first, and histograms; light and dark.
std::string ReportPage(const Json& report);

}  // namespace narrowfloat::tools
