// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {

/// An operand of a recorded product, "x" or "w": codes by lines, and one scale per slab of a line.
/// Decodes them without the code under test.
class RecordedOperand final : public GemmOperand {
 public:
  RecordedOperand(const GoldenCase& golden, std::string_view side);

  void Values(const LineRange& range, PanelSteps steps, float* out) const noexcept override;
  void Scales(std::size_t line_begin, std::size_t line_end, std::size_t slab_index,
              float* out) const noexcept override;
  float Value(std::size_t line, std::size_t pos) const { return values_[line * length + pos]; }
  float Scale(std::size_t line, std::size_t slab_index) const;

 private:
  std::vector<float> values_, scales_, amaxes_;
  std::size_t scale_rows_, scale_cols_;
};

/// The arguments of a case of group gm.
struct RecordedProduct {
  explicit RecordedProduct(const GoldenCase& recorded);

  const GoldenCase& golden;
  std::size_t rows, cols, length;
  DType dtype;
  bool accumulates;

  /// Returns the name of an operand's scheme.
  std::string SchemeName(std::string_view side) const;
  /// Returns the fields of that scheme that GemmRuleOf reads, without the registry.
  SchemeInfo Describe(std::string_view side) const;
  std::string_view Mode() const { return golden.params.at("mode").get_ref<const std::string&>(); }

  /// Returns `out` before the product: the record's, or one with arbitrary items if it has none.
  FloatTensor Before() const;
  std::optional<FloatTensor> Bias() const;
  /// Checks the recorded bytes if they are exact, and the error bound if exact sums are recorded.
  void Expect(const FloatTensor& got, const std::string& context) const;
};

}  // namespace narrowfloat::conformance
