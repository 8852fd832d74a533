// SPDX-License-Identifier: Apache-2.0
// Writes output with non-temporal stores, which bypass the caches. Compiled once per instruction
// set.
#if defined(NARROWFLOAT_KERNELS_CPU_NONTEMPORAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_NONTEMPORAL_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_NONTEMPORAL_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_NONTEMPORAL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "narrowfloat/kernels/geometry.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kLine = 64;  // bytes of a cache line

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
  for (std::size_t i = 0; i < count; i += kLine) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
    __builtin_prefetch(from + i, 0, 2);
#else
    hwy::Prefetch(from + i);
#endif
  }
}

/// Returns the address to prefetch after a row's items up to `col`: the same row at `col` or, at
/// the row's end, the row `rows` further down.
template <class T>
HWY_INLINE const std::byte* NextItems(const QuantizeArgs& args, std::size_t row, std::size_t col,
                                      std::size_t rows) {
  if (col < args.shape.cols) return args.in.Row(row) + col * kItemSize<T>;
  return args.in.Row(std::min(row + rows, args.shape.rows - 1));
}

/// Copies whole lines with stores that bypass the caches.
HWY_INLINE void CopyLinesNontemporal(const std::byte* from, std::size_t count, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
}

/// Returns the number of bytes from `at` to the next beginning of a line, 0 if it is one.
HWY_INLINE std::size_t BytesToLine(const std::byte* at) {
  return (0 - reinterpret_cast<std::uintptr_t>(at)) % kLine;
}

/// Copies any run with stores that bypass the caches, except for the partial lines at its ends:
/// memory would be read to fill each of these.
HWY_NOINLINE inline void CopyUnevenNontemporal(const std::byte* from, std::size_t count,
                                               std::byte* to) {
  const std::size_t head = std::min(count, BytesToLine(to));
  const std::size_t lines = (count - head) / kLine * kLine, end = head + lines;
  CopyBytes(from, head, to);
  CopyLinesNontemporal(from + head, lines, to + head);
  CopyBytes(from + end, count - end, to + end);
}

HWY_INLINE void CopyNontemporal(const std::byte* from, std::size_t count, std::byte* to) {
  if ((reinterpret_cast<std::uintptr_t>(to) | count) % kLine == 0) {
    CopyLinesNontemporal(from, count, to);
  } else {
    CopyUnevenNontemporal(from, count, to);
  }
}

/// Writes a run of output, one vector at a time.
struct VectorWriter {
  std::uint8_t* to;
  bool nontemporal;  // uses non-temporal stores; `to` is aligned for them

  /// Stores a vector `at` bytes after `to`.
  template <class D>
  HWY_INLINE void Put(D d, hn::Vec<D> vector, std::size_t at) const {
    auto* place = reinterpret_cast<hn::TFromD<D>*>(to + at);
    if (nontemporal) {
      hn::Stream(vector, d, place);
    } else {
      hn::StoreU(vector, d, place);
    }
  }
  HWY_INLINE VectorWriter From(std::size_t at) const { return {to + at, nontemporal}; }
};

/// Returns a writer at `to`, non-temporal if that is allowed and `to` is aligned for vectors of D.
template <class D>
HWY_INLINE VectorWriter WriterAt(D d, std::byte* to, bool nontemporal) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % hn::Lanes(d) == 0;
  return {reinterpret_cast<std::uint8_t*>(to), nontemporal && aligned};
}

/// Chooses where a run of output is written: in place or, for non-temporal stores, in a buffer in
/// the first-level cache that Close copies. A line that is written twice or in parts must be
/// staged.
template <std::size_t kBytes>
class StagedWriter {
 public:
  /// `nontemporal_copies` applies to copies of runs that are written in place.
  explicit StagedWriter(bool nontemporal, bool nontemporal_copies = false)
      : nontemporal_(nontemporal), nontemporal_copies_(nontemporal_copies) {}
  ~StagedWriter() {
    if (nontemporal_ || nontemporal_copies_) hwy::FlushStream();
  }
  StagedWriter(const StagedWriter&) = delete;
  StagedWriter& operator=(const StagedWriter&) = delete;

  HWY_INLINE std::byte* Open(std::byte* to) { return nontemporal_ ? staged_ : to; }
  /// Ends the run that Open(to) began: copies it if it was staged.
  HWY_INLINE void Close(std::byte* to, std::size_t count) {
    if (nontemporal_) CopyNontemporal(staged_, count, to);
  }

  /// Opens a run that is written vector by vector: without staging if `to` is aligned.
  template <class D>
  HWY_INLINE VectorWriter Open(D d, std::byte* to) {
    const VectorWriter opened = WriterAt(d, to, nontemporal_);
    return opened.nontemporal == nontemporal_ ? opened : WriterAt(d, staged_, false);
  }
  /// Returns the writer of a second copy of the run, at null if none is needed before Close. If
  /// `opened` is non-temporal, the copy is staged: alternating between two non-temporal runs halves
  /// the bandwidth.
  template <class D>
  HWY_INLINE VectorWriter OpenCopy(D d, const VectorWriter& opened, std::byte* copy) {
    if (copy == nullptr || IsStaged(opened)) return {nullptr, false};
    return opened.nontemporal ? WriterAt(d, staged_, false)
                              : WriterAt(d, copy, nontemporal_copies_);
  }
  HWY_INLINE void Close(const VectorWriter& opened, std::byte* to, std::size_t count,
                        std::byte* copy = nullptr) {
    if (IsStaged(opened)) CopyNontemporal(staged_, count, to);
    if (copy != nullptr && nontemporal_) CopyNontemporal(staged_, count, copy);
  }

 private:
  HWY_INLINE bool IsStaged(const VectorWriter& opened) const {
    return opened.to == reinterpret_cast<const std::uint8_t*>(staged_);
  }

  bool nontemporal_, nontemporal_copies_;
  alignas(64) std::byte staged_[kBytes];
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
