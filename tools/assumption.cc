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

void SayMissingInputScales(const std::string& verb, const io::ConventionWriter& writer) {
  const std::string missing = writer.MissingInputScales();
  if (!missing.empty()) PrintToStderr("{}: {}\n", verb, Escaped(missing));
}

}  // namespace narrowfloat::tools
