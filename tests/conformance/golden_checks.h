// SPDX-License-Identifier: Apache-2.0
// Compares verbs with the records of tests/golden/. Every Check function fails the running test if
// they differ.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/conformance/golden_case.h"
#include "tests/conformance/verbs.h"

namespace narrowfloat::conformance {

/// Returns the files of NVFP4 without two in which the Python reference's transform differs: one
/// has a NaN, which its amax propagates; one has fp32 items, whose partial sums it rounds.
std::vector<std::filesystem::path> GoldenNvfp4Files();

/// Checks every buffer in each direction, compact and swizzled: groups cs, ds, mx, bs and nv.
void CheckQuantize(const GoldenCase& golden, const Verbs& verbs);
/// Checks the dbias of a case that has one.
void CheckDbias(const GoldenCase& golden, const Verbs& verbs);
/// Checks scales with their padding, in the cases of group bs in which all references agree.
void CheckScalesForGemms(const Verbs& verbs);
/// Checks the values of recorded codes: groups dq, cs, ds, mx, bs and nv.
void CheckDequantize(const GoldenCase& golden, const Verbs& verbs);
/// Checks codes, scales and values of group mxfp4.
void CheckMxfp4(const GoldenCase& golden, const Verbs& verbs);
/// Checks casts and scales of group ct.
void CheckTable(const GoldenCase& golden, const Verbs& verbs);
/// Checks group sw.
void CheckSwizzle(const GoldenCase& golden, const Verbs& verbs);
/// Checks the transform of group rht: each item is the recorded sum, exact in binary64, rounded
/// once.
void CheckHadamard(const GoldenCase& golden, const Verbs& verbs);
/// Checks the steps of group dsu.
void CheckDelayedScale(const GoldenCase& golden, const Verbs& verbs);

}  // namespace narrowfloat::conformance
