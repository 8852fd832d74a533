// SPDX-License-Identifier: Apache-2.0
#include "tools/speed/streams.h"

#include <algorithm>
#include <cstdint>

#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/shape.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/speed/streams.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // NOLINT
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::speed::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void Read(const std::uint8_t* in, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i < bytes; i += 4 * lanes) {
    a = hn::Or(a, hn::Load(d, in + i));
    b = hn::Or(b, hn::Load(d, in + i + lanes));
    c = hn::Or(c, hn::Load(d, in + i + 2 * lanes));
    e = hn::Or(e, hn::Load(d, in + i + 3 * lanes));
  }
  // The compiler would remove a read without a use of its result.
  volatile std::uint8_t used = hn::GetLane(hn::Or(hn::Or(a, b), hn::Or(c, e)));
  static_cast<void>(used);
}

/// Moves bytes; reads kReads vectors and writes kWrites vectors per step.
template <std::size_t kReads, std::size_t kWrites, Stores kStores>
void Move(const std::uint8_t* in, std::size_t read_bytes, std::uint8_t* out) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::uint8_t* end = in + read_bytes;
  for (; in < end; in += kReads * lanes, out += kWrites * lanes) {
    auto folded = hn::Load(d, in);
    for (std::size_t k = 1; k < kReads; ++k) folded = hn::Xor(folded, hn::Load(d, in + k * lanes));
    for (std::size_t k = 0; k < kWrites; ++k) {
      if constexpr (kStores == Stores::kNontemporal) {
        hn::Stream(folded, d, out + k * lanes);
      } else {
        hn::Store(folded, d, out + k * lanes);
      }
    }
  }
  if constexpr (kStores == Stores::kNontemporal) hwy::FlushStream();
}

template <Stores kStores>
void Dispatch(const std::uint8_t* in, std::size_t read_bytes, std::uint8_t* out,
              std::size_t write_bytes) {
  if (read_bytes >= 4 * write_bytes) return Move<4, 1, kStores>(in, read_bytes, out);
  if (read_bytes >= 2 * write_bytes) return Move<2, 1, kStores>(in, read_bytes, out);
  if (write_bytes >= 4 * read_bytes) return Move<1, 4, kStores>(in, read_bytes, out);
  if (write_bytes >= 2 * read_bytes) return Move<1, 2, kStores>(in, read_bytes, out);
  Move<1, 1, kStores>(in, read_bytes, out);
}

void Run(const std::uint8_t* in, std::size_t read_bytes, std::uint8_t* out, std::size_t write_bytes,
         Stores stores) {
  if (write_bytes == 0) return Read(in, read_bytes);
  if (stores == Stores::kNontemporal)
    return Dispatch<Stores::kNontemporal>(in, read_bytes, out, write_bytes);
  Dispatch<Stores::kCached>(in, read_bytes, out, write_bytes);
}

}  // namespace
}  // namespace narrowfloat::speed::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat::speed {
namespace {

HWY_EXPORT(Run);

/// Above this size of its output, a stream is faster with non-temporal stores.
constexpr std::size_t kCachedBytes = std::size_t{1} << 20;

/// Bytes of the smaller side that one thread processes at a time: about as in a kernel's tile.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

}  // namespace

void SameTraffic(const std::byte* in, std::size_t read_bytes, std::byte* out,
                 std::size_t write_bytes, const Execution& execution) {
  Stores stores = execution.stores;
  if (stores == Stores::kBySize)
    stores = write_bytes > kCachedBytes ? Stores::kNontemporal : Stores::kCached;
  const auto run = [stores](const std::uint8_t* source, std::size_t reads, std::uint8_t* target,
                            std::size_t writes) {
    HWY_DYNAMIC_DISPATCH(Run)(source, reads, target, writes, stores);
  };
  const auto* from = reinterpret_cast<const std::uint8_t*>(in);
  auto* to = reinterpret_cast<std::uint8_t*>(out);
  if (ThreadCount(execution) == 1) return run(from, read_bytes, to, write_bytes);

  const std::size_t smaller = write_bytes == 0 ? read_bytes : std::min(read_bytes, write_bytes);
  const std::size_t read_ratio = read_bytes / smaller, write_ratio = write_bytes / smaller;
  ParallelFor(execution, CeilDiv(smaller, kPieceBytes), [&](std::size_t i) {
    const std::size_t begin = i * kPieceBytes, bytes = std::min(kPieceBytes, smaller - begin);
    run(from + begin * read_ratio, bytes * read_ratio, to + begin * write_ratio,
        bytes * write_ratio);
  });
}

}  // namespace narrowfloat::speed
#endif
