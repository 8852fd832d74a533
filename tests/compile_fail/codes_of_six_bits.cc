// SPDX-License-Identifier: Apache-2.0
// The planner with a scheme of MXFP6, whose codes no kernel packs.
#define NF_EXTRA_SCHEMES "tests/compile_fail/codes_of_six_bits.h"
#include "narrowfloat/tensor/plan.cc"  // NOLINT(bugprone-suspicious-include)
