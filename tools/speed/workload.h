// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"
#include "tools/speed/memory.h"

namespace narrowfloat::speed {

enum class Verb { kAmax, kQuantize, kDequantize };

/// Returns "amax", "quantize" or "dequantize".
std::string_view VerbName(Verb verb);

/// Returns "rowwise", "columnwise" or "both".
std::string_view DirectionName(Direction direction);

/// One call of a verb, and its minimum traffic: codes and floats, without the scales, which are at
/// most a 24th of it (NVFP4 in both directions).
struct Workload {
  Verb verb;
  QuantSpec spec;       // of the quantized tensor; not used for amax
  Direction direction;  // of the codes
  DType dtype;          // of the floats
  std::string_view backend;
  std::size_t elements;
  std::size_t extra_read_bytes;  // of a pass over the input before the pass that writes
  std::size_t read_bytes, write_bytes;
  std::function<void()> run;
  std::function<void()> prepare = {};  // must be called before `run`; may be empty

  /// Returns a name such as "quantize(current) fp8_e4m3 rowwise bfloat16".
  std::string Name() const;
  /// Returns true if the spec has more than scheme and direction.
  bool HasOptions() const;
  std::size_t Bytes() const { return extra_read_bytes + read_bytes + write_bytes; }
  bool HasTrafficOf(const Workload& other) const {
    return extra_read_bytes == other.extra_read_bytes && read_bytes == other.read_bytes &&
           write_bytes == other.write_bytes;
  }
  /// Moves the same bytes with plain loads and stores. Requires: the matrix has a multiple of 1024
  /// columns.
  void RunStream(const Memory& memory, const Execution& execution) const;
};

/// Makes workloads of every verb, scheme, direction, type of the memory, and backend (or only the
/// execution's). Tensors begin `past_line` bytes after the start of a cache line. Requires:
/// `memory` outlives the result.
std::vector<Workload> MakeWorkloads(const Memory& memory, const Execution& execution,
                                    std::size_t past_line = 0);

}  // namespace narrowfloat::speed
