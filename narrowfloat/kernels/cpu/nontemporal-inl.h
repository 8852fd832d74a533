// SPDX-License-Identifier: Apache-2.0
// Writes output with non-temporal stores, which bypass the caches. Compiled once per instruction
// set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/kernels/geometry.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Copies as std::memcpy does. Compilers turn a std::memcpy between vector code into a slow string
/// instruction.
HWY_INLINE void CopyBytes(const std::byte* from, std::size_t count, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
  for (; i + 16 <= count; i += 16) std::memcpy(to + i, from + i, 16);
  if (i < count) std::memcpy(to + i, from + i, count - i);
}

/// Prefetches `count` bytes into the second-level cache.
HWY_INLINE void PrefetchBytes(const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLineBytes) __builtin_prefetch(from + i, 0, 2);
}

/// Copies whole lines with stores that bypass the caches. Requires: `to` begins at a line; `count`
/// is a multiple of kLineBytes.
HWY_INLINE void CopyLinesNontemporal(const std::byte* from, std::size_t count, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
}

/// Copies any run with stores that bypass the caches, except for the partial lines at its ends: to
/// fill a partial line, such a store would read memory.
HWY_NOINLINE inline void CopyUnevenNontemporal(const std::byte* from, std::size_t count,
                                               std::byte* to) {
  const std::size_t head = std::min(count, BytesToLine(to));
  const std::size_t lines = (count - head) / kLineBytes * kLineBytes, end = head + lines;
  CopyBytes(from, head, to);
  CopyLinesNontemporal(from + head, lines, to + head);
  CopyBytes(from + end, count - end, to + end);
}

HWY_INLINE void CopyNontemporal(const std::byte* from, std::size_t count, std::byte* to) noexcept {
  if ((reinterpret_cast<std::uintptr_t>(to) | count) % kLineBytes == 0) {
    CopyLinesNontemporal(from, count, to);
  } else {
    CopyUnevenNontemporal(from, count, to);
  }
}

/// Writes a run of output, one vector at a time.
struct VectorWriter {
  std::uint8_t* to;
  bool nontemporal = false;  // uses non-temporal stores
  bool is_shifted = false;   // is non-temporal, and `to` is not aligned to HWY_MAX_BYTES

  /// Stores a vector at to + at. Requires: if nontemporal, this address is aligned to the vector.
  template <class D>
  HWY_INLINE void Put(D d, hn::Vec<D> vector, std::size_t at) const {
    auto* place = reinterpret_cast<hn::TFromD<D>*>(to + at);
    NF_DCHECK(!nontemporal ||
              reinterpret_cast<std::uintptr_t>(place) % (hn::MaxLanes(d) * sizeof *place) == 0);
    nontemporal ? hn::Stream(vector, d, place) : hn::StoreU(vector, d, place);
  }
  HWY_INLINE VectorWriter From(std::size_t at) const { return {to + at, nontemporal, is_shifted}; }
};

/// Writes a run that begins inside a vector of kBytes in memory. Uses non-temporal stores of whole
/// aligned vectors: each store has the end of one vector passed to Put and the beginning of the
/// next one. Stores of kNontemporalAlignment each took up to twice as long (docs/performance.md).
/// Worked example: kBytes 64, a run from address 16 on. The first vector's first 48 bytes go to 16,
/// its last 16 and the second vector's first 48 to 64. Finish writes the last vector's last 16.
template <std::size_t kBytes>
class ShiftedWriter {
  using D = hn::CappedTag<std::uint64_t, kBytes / 8>;
  using V = hn::Vec<D>;

 public:
  /// Requires: `to` is aligned to kNontemporalAlignment, but not to kBytes.
  explicit HWY_INLINE ShiftedWriter(std::uint8_t* to)
      : past_(reinterpret_cast<std::uintptr_t>(to) % kBytes), next_(to) {
    NF_DCHECK(past_ != 0 && past_ % cpu::kNontemporalAlignment == 0);
    hn::Store(hn::Iota(D(), (kBytes - past_) / 8), D(), order_);
  }

  /// Writes the next vector of the run. A vector shorter than kBytes must be the run's last.
  template <class DPart>
  HWY_INLINE void Put(DPart d, hn::Vec<DPart> vector, std::size_t /*at*/) {
    if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<DPart>) < kBytes) {
      Finish();
      hn::StoreU(vector, d, reinterpret_cast<hn::TFromD<DPart>*>(next_));
    } else {
      const V bits = hn::BitCast(D(), vector);
      if (holds_) {
        hn::Stream(Joined(bits), D(), reinterpret_cast<std::uint64_t*>(next_ - past_));
      } else {
        StoreBlocks(bits, 0, kBytes - past_, next_);
      }
      hn::Store(bits, D(), held_);
      holds_ = true;
      next_ += kBytes;
    }
  }
  HWY_INLINE ShiftedWriter& From(std::size_t /*at*/) { return *this; }
  /// Writes the rest of the last vector.
  HWY_INLINE void Finish() {
    if (holds_) StoreBlocks(hn::Load(D(), held_), kBytes - past_, past_, next_ - past_);
    holds_ = false;
  }

 private:
  /// Returns the last past_ bytes of held_, and then the first bytes of `bits`.
  HWY_INLINE V Joined(V bits) const {
    const D d;
    const V held = hn::Load(d, held_);
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kBytes == 64) {
      const V order = hn::Load(d, order_);
      return V{_mm512_permutex2var_epi64(held.raw, order.raw, bits.raw)};
    }
#endif
    static_assert(kBytes <= 2 * cpu::kNontemporalAlignment || HWY_TARGET <= HWY_AVX3);
    return hn::ConcatLowerUpper(d, bits, held);
  }
  /// Stores `count` bytes of a vector, from byte `from` on, as blocks of kNontemporalAlignment.
  static HWY_INLINE void StoreBlocks(V bits, std::size_t from, std::size_t count,
                                     std::uint8_t* to) {
    const hn::FixedTag<std::uint8_t, cpu::kNontemporalAlignment> d;
    alignas(kBytes) std::uint64_t staged[kBytes / 8];
    hn::Store(bits, D(), staged);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(staged) + from;
    for (std::size_t i = 0; i < count; i += hn::Lanes(d))
      hn::Stream(hn::Load(d, bytes + i), d, to + i);
  }

  std::size_t past_;    // bytes from a multiple of kBytes to the run
  std::uint8_t* next_;  // address of the next vector
  bool holds_ = false;
  // Arrays, because SVE allows no vector as a member.
  alignas(kBytes) std::uint64_t held_[kBytes / 8];   // the last vector
  alignas(kBytes) std::uint64_t order_[kBytes / 8];  // of Joined: indices into held_ and `bits`
};

/// Returns the writer of a run. Requires: if `nontemporal`, IsNontemporalAligned(to).
HWY_INLINE VectorWriter WriterTo(std::byte* to, bool nontemporal) {
  NF_DCHECK(!nontemporal || cpu::IsNontemporalAligned(to));
  const bool is_shifted = HWY_MAX_BYTES > cpu::kNontemporalAlignment && nontemporal &&
                          reinterpret_cast<std::uintptr_t>(to) % HWY_MAX_BYTES != 0;
  return {reinterpret_cast<std::uint8_t*>(to), nontemporal, is_shifted};
}

/// Calls write(writer) with a writer of adjacent vectors of kBytes each. The call for aligned runs
/// is compiled separately, so that shifting costs nothing there.
template <std::size_t kBytes = HWY_MAX_BYTES, class Write>
HWY_INLINE void WithWriter(const VectorWriter& out, const Write& write) {
  if constexpr (kBytes > cpu::kNontemporalAlignment) {
    if (out.is_shifted && reinterpret_cast<std::uintptr_t>(out.to) % kBytes != 0) {
      ShiftedWriter<kBytes> shifted(out.to);
      write(shifted);
      return shifted.Finish();
    }
  }
  write(out);
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
