// SPDX-License-Identifier: Apache-2.0
#include "tools/assumption.h"

#include <fmt/format.h>

#include "tools/standard_error.h"
#include "tools/text.h"

namespace narrowfloat::tools {

io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention) {
  if (convention.assumed) PrintToStderr("{}: {}\n", verb, Escaped(convention.reason));
  return convention;
}

}  // namespace narrowfloat::tools
