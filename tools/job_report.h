// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/command.h"
#include "tools/job.h"

namespace narrowfloat::tools {

/// Returns the result as text and as JSON. `rewritten` is the command's participle, such as
/// "quantized".
Result JobReport(const JobResult& job, const std::string& rewritten, Json first_keys);

}  // namespace narrowfloat::tools
