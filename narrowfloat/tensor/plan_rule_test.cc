// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/plan_rule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {
namespace {

/// Returns the size that a rule computes for `shape`.
std::int64_t EvaluateRule(const SizeRule& rule, const Shape& shape) {
  std::int64_t product = 1;
  for (const std::size_t i : rule.dimensions) product *= shape[i];
  const std::int64_t divided = (product + rule.divisor - 1) / rule.divisor;
  return (divided + rule.multiple - 1) / rule.multiple * rule.multiple;
}

void ExpectSamePlan(const std::string& text, const Shape& shape) {
  const QuantSpec spec = ParseQuantSpec(text);
  const std::vector<BufferPlan> plan = PlanQuantize(spec, shape);
  const std::vector<BufferRule> rules = PlanRules(spec, shape.size());
  ASSERT_EQ(rules.size(), plan.size()) << text;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    Shape sizes;
    for (const SizeRule& rule : rules[i].sizes) sizes.push_back(EvaluateRule(rule, shape));
    const BufferPlan evaluated{rules[i].role, rules[i].dtype, sizes, rules[i].storage};
    EXPECT_EQ(evaluated, plan[i]) << text << " " << RoleName(plan[i].role) << " of "
                                  << ShapeText(shape) << ", got " << ShapeText(sizes);
  }
}

TEST(PlanRulesTest, EvaluateToThePlan) {
  for (const SchemeInfo& scheme : kSchemes) {
    for (const char* directions : {"", ":columnwise=1", ":columnwise=1,rowwise=0"}) {
      for (const Shape& shape : {Shape{32, 64}, Shape{130, 302}, Shape{2, 3, 20, 96}, Shape{0, 64},
                                 Shape{256, 2}, Shape{2, 0}}) {
        ExpectSamePlan(std::string(scheme.name) + directions, shape);
      }
    }
    ExpectSamePlan(std::string(scheme.name), {64});
  }
}

TEST(PlanRulesTest, RowsMayHaveAmaxesOfTheirOwn) {
  ExpectSamePlan("nvfp4:row_scaled=1", {3, 32, 64});
  ExpectSamePlan("nvfp4:row_scaled=1", {130, 64});
}

}  // namespace
}  // namespace narrowfloat
