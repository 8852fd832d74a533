// SPDX-License-Identifier: Apache-2.0
// Operands of the product handlers: matrices of codes in XLA's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "bindings/ffi/buffers.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::xla_ffi {

/// The verb in messages of products.
inline constexpr const char* kGemmVerb = "gemm";

/// Names of an operand and its buffers in messages.
struct OperandNames {
  const char *data, *scale_inv, *amax;
};
inline constexpr OperandNames kLhsNames{"lhs", "scale_inv of lhs", "amax of lhs"};
inline constexpr OperandNames kRhsNames{"rhs", "scale_inv of rhs", "amax of rhs"};

/// An operand: matrices of codes, one per group, adjacent in memory. `rows` and `cols` are the
/// sizes of each matrix; -1 is the size of the group. If `is_turned`, columnwise codes are stored
/// as rows although the scheme stores them transposed.
struct Operand {
  OperandNames names;
  ffi::AnyBuffer data, scale_inv, amax;
  QuantSpec spec;
  std::int64_t rows, cols;
  bool is_turned;

  const SchemeInfo& Scheme() const { return *spec.scheme; }
};

/// Returns the binding with the attributes of both operands.
template <class Binding>
auto WithOperandAttributes(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("lhs_spec")
      .template Attr<std::int64_t>("lhs_rows")
      .template Attr<std::int64_t>("lhs_cols")
      .template Attr<bool>("lhs_turned")
      .template Attr<std::string_view>("rhs_spec")
      .template Attr<std::int64_t>("rhs_rows")
      .template Attr<std::int64_t>("rhs_cols")
      .template Attr<bool>("rhs_turned");
}

/// Parses a spec. Errors: InvalidArgument unless it has exactly one direction.
QuantSpec SpecOfOneDirection(std::string_view text);

/// Returns the layout of a product that reads these directions. Errors: InvalidArgument if lhs is
/// columnwise and rhs rowwise.
GemmLayout LayoutOf(const Operand& lhs, const Operand& rhs);

/// The groups' buffers, read one group after another.
class OperandBuffers {
 public:
  /// Errors: InvalidArgument for codes or scales of a wrong type, or codes that cannot be turned.
  OperandBuffers(const Operand& operand, std::size_t groups, const Execution& execution);

  /// Returns the matrix of group `group` with size `size`. Requires: calls in the order of groups.
  /// Errors: InvalidArgument if the buffers have too few items.
  ConstQuantizedView Take(std::size_t group, std::int64_t size);

  /// Checks the ends. Errors: InvalidArgument if codes remain, or scales remain without groups.
  void CheckAllTaken(bool is_grouped) const;

 private:
  const std::byte* Memory(const BufferPlan& buffer, std::size_t group, const Shape& shape);

  const Operand& operand_;
  const Execution& execution_;
  std::unique_ptr<std::byte[]> turned_;
  const std::size_t groups_, codes_, scales_;
  std::size_t used_codes_ = 0, used_scales_ = 0;
};

}  // namespace narrowfloat::xla_ffi
