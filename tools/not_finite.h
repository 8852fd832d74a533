// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::tools {

/// Counts the values of a tensor that are NaN or infinite.
std::uint64_t CountNotFinite(DType dtype, std::span<const std::byte> values,
                             const Execution& execution);

/// Tensors with values that a job does not keep, because they are or become NaN or infinite.
class NotFiniteTensors {
 public:
  /// Adds a tensor with `count` such values; does nothing for 0.
  void Add(const std::string& name, std::uint64_t count);

  /// Returns "`what`, in 2 tensors; the first is a.weight with 3 values", or nothing without
  /// tensors.
  std::vector<std::string> Notes(const std::string& what) const;

 private:
  std::size_t tensors_ = 0;
  std::string first_;
  std::uint64_t first_count_ = 0;
};

}  // namespace narrowfloat::tools
