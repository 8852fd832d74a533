// SPDX-License-Identifier: Apache-2.0
// Compiles the planner with a scheme of MXFP6. No kernel packs codes of 6 bits.
#define NF_EXTRA_SCHEMES "tests/compile_fail/codes_of_six_bits.h"
#include "narrowfloat/tensor/plan.cc"  // NOLINT(bugprone-suspicious-include)
