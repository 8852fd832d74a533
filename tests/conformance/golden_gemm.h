// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {

/// One side of a recorded product, "x" or "w": codes by lines, and a scale for each slab of a line.
/// Decoded without the code under test.
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

/// Arguments of a case of group gm.
struct RecordedProduct {
  explicit RecordedProduct(const GoldenCase& recorded);

  const GoldenCase& golden;
  std::size_t rows, cols, length;
  DType dtype;
  bool accumulates;

  /// Returns the name of the scheme of a side; it need not exist.
  std::string SchemeName(std::string_view side) const;
  /// Returns the description of that scheme for a rule, without the registry.
  SchemeInfo Describe(std::string_view side) const;
  std::string_view Mode() const { return golden.params.at("mode").get_ref<const std::string&>(); }

  /// Contents of `out` before the product: recorded, or nothing.
  FloatTensor Before() const;
  std::optional<FloatTensor> Bias() const;
  /// Checks the recorded bytes where they are exact, else the bound.
  void Expect(const FloatTensor& got, const std::string& context) const;
};

}  // namespace narrowfloat::conformance
