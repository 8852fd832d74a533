// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {

/// Satisfies Scheme unless NF_MUST_FAIL is defined, which removes DecodeScale.
struct Unfinished {
  using Element = E4M3;
  static constexpr BlockShape kBlock{1, 8};
  static constexpr SchemeLayout kLayout = Mxfp8Scheme<E4M3>::kLayout;
  static constexpr OptionSet kOptions{}, kOnByDefault{};
  struct TensorState {};
  static constexpr TensorState Prepare(float, const ScaleOptions&) noexcept { return {}; }
  static constexpr BlockScale ScaleBlock(float, const TensorState&) noexcept { return {}; }
#if !defined(NF_MUST_FAIL)
  static constexpr float DecodeScale(std::uint32_t, const TensorState&) noexcept {
    return 1.0f;
  }
#endif
};

static_assert(Scheme<Unfinished>);

}  // namespace narrowfloat
