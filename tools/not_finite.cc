// SPDX-License-Identifier: Apache-2.0
#include "tools/not_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/shape.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

/// One bit per value in a word of 8 bytes: the lowest of the exponent, and the sign.
struct Lanes {
  std::uint64_t exponent, lowest, sign;

  /// Sets the sign of each value whose exponent has only ones, by a carry.
  std::uint64_t Carry(std::uint64_t word) const { return (word & exponent) + lowest; }
};

constexpr std::uint64_t kEach16 = 0x0001000100010001, kEach32 = 0x0000000100000001;

template <FloatFormat F>
constexpr Lanes kLanesOf{kEach16 * (F::kMaxCode + 1u), kEach16 << F::kMantissaBits,
                         kEach16* kSignCode<F>};

constexpr Lanes LanesOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return kLanesOf<BFloat16>;
    case DType::kFloat16:
      return kLanesOf<Float16>;
    case DType::kFloat32:
    case DType::kUInt8:  // not a type of values
      break;
  }
  constexpr std::uint32_t kLowest = kFloatInfinity & (~kFloatInfinity + 1u);
  return {kEach32 * kFloatInfinity, kEach32 * kLowest, kEach32 * kFloatSign};
}

/// Calls `use` with each word; zeros complete the last one.
template <class Use>
void ForWords(std::span<const std::byte> bytes, const Use& use) {
  std::uint64_t word = 0;
  std::size_t at = 0;
  for (; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    use(word);
  }
  if (at == bytes.size()) return;
  word = 0;
  std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  use(word);
}

}  // namespace

std::uint64_t CountNotFinite(DType dtype, std::span<const std::byte> values,
                             const Execution& execution) {
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  const Lanes lanes = LanesOf(dtype);
  std::atomic<std::uint64_t> count = 0;
  ParallelFor(execution, CeilDiv(values.size(), kPiece), [&](std::size_t i) {
    const std::size_t begin = i * kPiece;
    const auto piece = values.subspan(begin, std::min(kPiece, values.size() - begin));
    std::uint64_t any = 0;  // counting bits takes longer, and is rarely needed
    ForWords(piece, [&](std::uint64_t word) { any |= lanes.Carry(word); });
    if ((any & lanes.sign) == 0) return;
    std::uint64_t found = 0;
    ForWords(piece, [&](std::uint64_t word) {
      found += static_cast<std::uint64_t>(std::popcount(lanes.Carry(word) & lanes.sign));
    });
    count += found;
  });
  return count;
}

void NotFiniteTensors::Add(const std::string& name, std::uint64_t count) {
  if (count == 0) return;
  if (tensors_++ > 0) return;
  first_ = name;
  first_count_ = count;
}

std::vector<std::string> NotFiniteTensors::Notes(const std::string& what) const {
  if (tensors_ == 0) return {};
  return {fmt::format("{}, in {}; the first is {} with {}", what, CountText(tensors_, "tensor"),
                      first_, CountText(first_count_, "value"))};
}

}  // namespace narrowfloat::tools
