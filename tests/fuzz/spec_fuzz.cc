// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/quant_spec.h"

/// Checks that a parsed spec prints to a text that parses to the same spec, and has a plan.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace narrowfloat;
  try {
    const QuantSpec spec = ParseQuantSpec({reinterpret_cast<const char*>(data), size});
    if (!(ParseQuantSpec(PrintQuantSpec(spec)) == spec)) std::abort();
    if (PlanQuantize(spec, {3, 5}).empty()) std::abort();
  } catch (const InvalidArgument&) {
    return 0;
  }
  return 0;
}
