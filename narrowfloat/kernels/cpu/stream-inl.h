// SPDX-License-Identifier: Apache-2.0
// Output that leaves for memory past the caches. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_STREAM_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_STREAM_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_STREAM_INL_H_
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

inline constexpr std::size_t kLine = 64;  // bytes that caches and memory exchange

/// What std::memcpy does, which compilers make a slow string instruction of in the middle of vector
/// code.
HWY_INLINE void CopyBytes(const std::byte* from, std::size_t count, std::byte* to) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from + i)), d,
               reinterpret_cast<std::uint8_t*>(to + i));
  }
  if (i < count) std::memcpy(to + i, from + i, count - i);
}

/// Asks for `count` bytes that will be read soon, into the second-level cache.
HWY_INLINE void PrefetchBytes(const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLine) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
    __builtin_prefetch(from + i, 0, 2);
#else
    hwy::Prefetch(from + i);
#endif
  }
}

/// Where a row goes on after its part up to `col`: beside it or, at its end, `rows` further down.
template <class T>
HWY_INLINE const std::byte* NextStrip(const QuantizeArgs& args, std::size_t row, std::size_t col,
                                      std::size_t rows) {
  if (col < args.shape.cols) return args.in.Row(row) + col * kItemSize<T>;
  return args.in.Row(std::min(row + rows, args.shape.rows - 1));
}

/// Copies whole lines with stores that bypass the caches.
HWY_INLINE void StreamLines(const std::byte* from, std::size_t count, std::byte* to) {
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

/// The same of any run. Lines at its ends that it does not fill must not bypass the caches: memory
/// would be read for each part of them.
HWY_NOINLINE inline void StreamUneven(const std::byte* from, std::size_t count, std::byte* to) {
  const std::size_t head = std::min(count, BytesToLine(to));
  const std::size_t lines = (count - head) / kLine * kLine, end = head + lines;
  CopyBytes(from, head, to);
  StreamLines(from + head, lines, to + head);
  CopyBytes(from + end, count - end, to + end);
}

HWY_INLINE void CopyNontemporal(const std::byte* from, std::size_t count, std::byte* to) {
  if ((reinterpret_cast<std::uintptr_t>(to) | count) % kLine == 0) {
    StreamLines(from, count, to);
  } else {
    StreamUneven(from, count, to);
  }
}

/// Takes a run of output, vector by vector.
struct VectorWriter {
  std::uint8_t* to;
  bool nontemporal;  // past the caches; `to` is aligned for it

  /// `at` bytes further on.
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

/// A sink at `to` that bypasses the caches if it may and vectors of D can.
template <class D>
HWY_INLINE VectorWriter WriterAt(D d, std::byte* to, bool nontemporal) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % hn::Lanes(d) == 0;
  return {reinterpret_cast<std::uint8_t*>(to), nontemporal && aligned};
}

/// Where a run of output is made: in place, or, if it is to bypass the caches, in the first-level
/// cache first. A line that is written twice or in parts must not bypass them.
template <std::size_t kBytes>
class StagedWriter {
 public:
  /// `nontemporal_copies` is for copies of runs that are made in place.
  explicit StagedWriter(bool nontemporal, bool nontemporal_copies = false)
      : nontemporal_(nontemporal), nontemporal_copies_(nontemporal_copies) {}
  ~StagedWriter() {
    if (nontemporal_ || nontemporal_copies_) hwy::FlushStream();
  }
  StagedWriter(const StagedWriter&) = delete;
  StagedWriter& operator=(const StagedWriter&) = delete;

  HWY_INLINE std::byte* Open(std::byte* to) { return nontemporal_ ? staged_ : to; }
  /// Sends what was made at Open(to).
  HWY_INLINE void Close(std::byte* to, std::size_t count) {
    if (nontemporal_) CopyNontemporal(staged_, count, to);
  }

  /// The same for a run that is put vector by vector, which can bypass the caches at once.
  template <class D>
  HWY_INLINE VectorWriter Open(D d, std::byte* to) {
    const VectorWriter sink = WriterAt(d, to, nontemporal_);
    return sink.nontemporal == nontemporal_ ? sink : WriterAt(d, staged_, false);
  }
  /// Where the vectors that are put into `sink` are to be put again, for `copy`, or null: lines of
  /// two runs that both bypass the caches at once cost twice the time.
  template <class D>
  HWY_INLINE VectorWriter OpenCopy(D d, const VectorWriter& sink, std::byte* copy) {
    if (copy == nullptr || IsStaged(sink)) return {nullptr, false};
    return sink.nontemporal ? WriterAt(d, staged_, false) : WriterAt(d, copy, nontemporal_copies_);
  }
  HWY_INLINE void Close(const VectorWriter& sink, std::byte* to, std::size_t count,
                        std::byte* copy = nullptr) {
    if (IsStaged(sink)) CopyNontemporal(staged_, count, to);
    if (copy != nullptr && nontemporal_) CopyNontemporal(staged_, count, copy);
  }

 private:
  HWY_INLINE bool IsStaged(const VectorWriter& sink) const {
    return sink.to == reinterpret_cast<const std::uint8_t*>(staged_);
  }

  bool nontemporal_, nontemporal_copies_;
  alignas(64) std::byte staged_[kBytes];
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
