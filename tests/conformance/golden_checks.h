// SPDX-License-Identifier: Apache-2.0
// Compares verbs with the records of tests/golden/. Every function fails the running test where
// they differ.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/conformance/golden_case.h"
#include "tests/conformance/verbs.h"

namespace narrowfloat::conformance {

/// Returns the files of NVFP4 without two that the Python reference's transform differs in: a NaN,
/// which its amax propagates, and fp32 items, whose sums it rounds on the way.
std::vector<std::filesystem::path> GoldenNvfp4Files();

/// Checks every buffer in each direction, compact and swizzled: groups cs, ds, mx, bs and nv.
void CheckQuantize(const GoldenCase& golden, const Verbs& verbs);
/// Checks the dbias of a case that has one.
void CheckDbias(const GoldenCase& golden, const Verbs& verbs);
/// Checks scales with their padding, which group bs records where all references agree.
void CheckScalesForGemms(const Verbs& verbs);
/// Checks the values of recorded codes: group dq, and what cs, ds, mx, bs and nv record.
void CheckDequantize(const GoldenCase& golden, const Verbs& verbs);
/// Checks codes, scales and values of group mxfp4.
void CheckMxfp4(const GoldenCase& golden, const Verbs& verbs);
/// Checks casts and scales of group ct.
void CheckTable(const GoldenCase& golden, const Verbs& verbs);
/// Checks group sw.
void CheckSwizzle(const GoldenCase& golden, const Verbs& verbs);
/// Checks group rht: exact sums are recorded in binary64, which holds them; one rounding makes the
/// items.
void CheckHadamard(const GoldenCase& golden, const Verbs& verbs);
/// Checks the steps of group dsu.
void CheckDelayedScale(const GoldenCase& golden, const Verbs& verbs);

}  // namespace narrowfloat::conformance
