// SPDX-License-Identifier: Apache-2.0
// Computes the scales of blocks and of columns, and the constants that encoding under them needs.
// Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/cpu/scales-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/numerics/scale.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

HWY_INLINE bool IsLineAligned(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kLineBytes == 0;
}

/// Computes the scales of blocks or of columns. Of blocks, stores `floor` and `multiplier` in their
/// order, because whole vectors use one block's scale, and bfloat16's floors twice in 32 bits. Of
/// columns, stores all in LaneScales' order, and bfloat16's floors as 16 bits each, in the order of
/// the columns. By E8M0, about 30 ops for Lanes(DF()) blocks, 70 for twice as many columns.
template <Places kPlaces, template <FloatFormat, class> class Rule, FloatFormat F, class T>
bool ComputeScales(const std::byte* amaxes, std::size_t count, const ScaleRule& rule,
                   const cpu::MicroScales& out) noexcept {
  const std::size_t lanes = hn::Lanes(DF());
  NF_DCHECK(count <= cpu::kMicroCols && IsLineAligned(out.scale) && IsLineAligned(out.floor));
  NF_DCHECK(kPlaces == Places::kBlocks || (count % (2 * lanes) == 0 && IsLineAligned(amaxes)));
  using C = PowerConstants<F, T>;
  const cpu::MicroScales to = out;
  auto outside = hn::Zero(DI()), stored = outside;
  auto scale = hn::Zero(DF()), high_scale = scale;
  const auto compute = [&](std::size_t i, hn::Vec<DF>& scale_of) NF_INLINE_ATTR {
    const auto field =
        Rule<F, T>::Compute(AmaxValues<T>(amaxes, i), rule, stored, scale_of, outside);
    Rule<F, T>::Store(stored, to.scale_inv, i);
    return field;
  };
  if constexpr (kPlaces == Places::kBlocks) {
    for (std::size_t j = 0; j < count; j += lanes) {
      const auto field = compute(j, scale);
      hn::StoreU(scale, DF(), to.scale + j);
      auto floor = C::Floor(field);
      if constexpr (std::is_same_v<T, BFloat16>) floor = hn::Or(floor, hn::ShiftLeft<16>(floor));
      hn::StoreU(floor, DI(), reinterpret_cast<std::int32_t*>(to.floor) + j);
      if constexpr (!kByTable<F, T>) hn::StoreU(C::Multiplier(field), DF(), to.multiplier + j);
    }
  } else {
    for (std::size_t c = 0; c < count; c += 2 * lanes) {
      const auto low = compute(c, scale), high = compute(c + lanes, high_scale);
      StoreLanes<T>(scale, high_scale, to.scale + c);
      if constexpr (std::is_same_v<T, BFloat16>) {
        const hn::Rebind<std::uint16_t, DF> d16;
        auto* floors = reinterpret_cast<std::uint16_t*>(to.floor) + c;
        hn::StoreU(hn::DemoteTo(d16, C::Floor(low)), d16, floors);
        hn::StoreU(hn::DemoteTo(d16, C::Floor(high)), d16, floors + lanes);
      } else {
        StoreLanes<T>(hn::BitCast(DF(), C::Floor(low)), hn::BitCast(DF(), C::Floor(high)),
                      reinterpret_cast<float*>(to.floor + c));
      }
      if constexpr (!kByTable<F, T>)
        StoreLanes<T>(C::Multiplier(low), C::Multiplier(high), to.multiplier + c);
    }
  }
  return IsZero(outside);
}

/// Widens 16-bit lanes: the lower and the upper half for kBlocks, else the even and the odd lanes.
template <Places kPlaces>
HWY_INLINE void Widen(hn::Vec<D16> lanes, hn::Vec<D32>& first, hn::Vec<D32>& second) {
  const D32 d32;
  const hn::Half<D16> half;
  if constexpr (kPlaces == Places::kBlocks) {
    first = hn::PromoteTo(d32, hn::LowerHalf(half, lanes));
    second = hn::PromoteTo(d32, hn::UpperHalf(half, lanes));
  } else {
    first = hn::And(hn::BitCast(d32, lanes), hn::Set(d32, 0xFFFFu));
    second = hn::ShiftRight<16>(hn::BitCast(d32, lanes));
  }
}

/// Does ComputeScales for bfloat16 by E8M0. About 35 ops for Lanes(D16()) places.
template <Places kPlaces, FloatFormat F>
bool BFloat16Scales(const std::byte* amaxes, std::size_t count, const ScaleRule& /*rule*/,
                    const cpu::MicroScales& out) noexcept {
  NF_DCHECK(count <= cpu::kMicroCols && IsLineAligned(out.scale) && IsLineAligned(out.floor));
  NF_DCHECK(kPlaces == Places::kBlocks || count % hn::Lanes(D16()) == 0);
  using Rule = BFloat16RuleE8M0<F>;
  const D16 d16;
  const D32 d32;
  const cpu::MicroScales to = out;
  auto outside = hn::Zero(d16);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d16)) {
    const auto code = Rule::Codes(LoadItems(d16, amaxes + i * kItemSize<BFloat16>), outside);
    const hn::Rebind<std::uint8_t, D16> d8;
    const auto bytes = hn::DemoteTo(d8, hn::BitCast(hn::RebindToSigned<D16>(), code));
    hn::StoreU(bytes, d8, reinterpret_cast<std::uint8_t*>(to.scale_inv) + i);
    auto first = hn::Zero(d32), second = first;
    const auto floor = Rule::Floor(code);
    if constexpr (kPlaces == Places::kColumns) {
      hn::StoreU(floor, d16, reinterpret_cast<std::uint16_t*>(to.floor) + i);
    } else {
      Widen<kPlaces>(floor, first, second);
      hn::StoreU(hn::Or(first, hn::ShiftLeft<16>(first)), d32, to.floor + i);
      hn::StoreU(hn::Or(second, hn::ShiftLeft<16>(second)), d32, to.floor + i + hn::Lanes(d32));
    }
    const auto store = [&](std::size_t k, hn::Vec<D32> codes) NF_INLINE_ATTR {
      const auto field = hn::Sub(hn::Set(DI(), static_cast<std::int32_t>(E8M0::kMaxCode)),
                                 hn::BitCast(DI(), codes));
      hn::StoreU(PowerOfField(field), DF(), to.scale + k);
      if constexpr (!kByTable<F, BFloat16>)
        hn::StoreU(PowerConstants<F, BFloat16>::Multiplier(field), DF(), to.multiplier + k);
    };
    Widen<kPlaces>(code, first, second);
    store(i, first);
    store(i + hn::Lanes(d32), second);
  }
  return hn::AllTrue(d16, hn::Eq(outside, hn::Zero(d16)));
}

template <FloatFormat F, class T>
inline constexpr cpu::ScaleKernels kE8M0Scales{&ComputeScales<Places::kBlocks, RuleE8M0, F, T>,
                                               &ComputeScales<Places::kColumns, RuleE8M0, F, T>};
template <FloatFormat F>
inline constexpr cpu::ScaleKernels kE8M0Scales<F, BFloat16>{&BFloat16Scales<Places::kBlocks, F>,
                                                            &BFloat16Scales<Places::kColumns, F>};

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
