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

/// Copies as std::memcpy does, which compilers turn into a slow string instruction between vector
/// code.
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

/// Copies whole lines with stores that bypass the caches.
HWY_INLINE void CopyLinesNontemporal(const std::byte* from, std::size_t count, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
}

/// Copies any run with stores that bypass the caches, except for the partial lines at its ends:
/// memory would be read to fill each of these.
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
  bool nontemporal = false;  // uses non-temporal stores; `to` is aligned to kNontemporalAlignment
  bool by_blocks = false;  // of kNontemporalAlignment each, because `to` is not aligned to vectors

  /// Stores a vector `at` bytes after `to`.
  template <class D>
  HWY_INLINE void Put(D d, hn::Vec<D> vector, std::size_t at) const {
    auto* place = reinterpret_cast<hn::TFromD<D>*>(to + at);
    if (!nontemporal) {
      hn::StoreU(vector, d, place);
    } else if (!by_blocks) {
      hn::Stream(vector, d, place);
    } else {
      StreamBlocks(d, vector, place);
    }
  }
  HWY_INLINE VectorWriter From(std::size_t at) const { return {to + at, nontemporal, by_blocks}; }

 private:
  /// Stores a vector by non-temporal stores of kNontemporalAlignment each.
  template <class D>
  static HWY_INLINE void StreamBlocks(D d, hn::Vec<D> vector, hn::TFromD<D>* place) {
    if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= cpu::kNontemporalAlignment) {
      hn::Stream(vector, d, place);
    } else {
      const hn::Half<D> half;
      StreamBlocks(half, hn::LowerHalf(half, vector), place);
      StreamBlocks(half, hn::UpperHalf(half, vector), place + hn::Lanes(half));
    }
  }
};

/// Returns the writer of a run. Requires: IsNontemporalAligned(to), if it is to be non-temporal.
HWY_INLINE VectorWriter WriterTo(std::byte* to, bool nontemporal) {
  NF_DCHECK(!nontemporal || cpu::IsNontemporalAligned(to));
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % HWY_MAX_BYTES == 0;
  return {reinterpret_cast<std::uint8_t*>(to), nontemporal, nontemporal && !is_aligned};
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
