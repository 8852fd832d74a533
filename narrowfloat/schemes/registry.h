// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "narrowfloat/numerics/type_list.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/fp8_tensor.h"
#include "narrowfloat/schemes/mxfp4.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"
#include "narrowfloat/schemes/scheme.h"

#if defined(NF_HWY_TARGET)
#error \
    "micro-kernels must not include the list of schemes: tests/extra_scheme links them with another list"
#endif

// A build may add schemes: NF_EXTRA_SCHEMES names a header that defines `kExtraSchemes`.
#if defined(NF_EXTRA_SCHEMES)
#include NF_EXTRA_SCHEMES
#else
namespace narrowfloat {
inline constexpr std::tuple<> kExtraSchemes;
}
#endif

namespace narrowfloat {

/// Lists the library's schemes.
inline constexpr std::tuple kOwnSchemes{
    Entry<PerTensorFp8Scheme<E4M3>>{0x0101, "fp8_e4m3"},
    Entry<PerTensorFp8Scheme<E5M2>>{0x0102, "fp8_e5m2"},
    Entry<Mxfp8Scheme<E4M3>>{0x0201, "mxfp8_e4m3"},
    Entry<Mxfp8Scheme<E5M2>>{0x0202, "mxfp8_e5m2"},
    Entry<Mxfp8SquareScheme<E4M3>>{0x0211, "mxfp8_2d_e4m3"},
    Entry<Mxfp8SquareScheme<E5M2>>{0x0212, "mxfp8_2d_e5m2"},
    Entry<BlockFp8Scheme<E4M3>>{0x0301, "fp8_block1x128_e4m3"},
    Entry<BlockFp8Scheme<E5M2>>{0x0302, "fp8_block1x128_e5m2"},
    Entry<SquareBlockFp8Scheme<E4M3>>{0x0311, "fp8_block128x128_e4m3"},
    Entry<SquareBlockFp8Scheme<E5M2>>{0x0312, "fp8_block128x128_e5m2"},
    Entry<Nvfp4Scheme>{0x0401, "nvfp4"},
    Entry<Nvfp4SquareScheme>{0x0411, "nvfp4_2d"},
    Entry<Mxfp4Scheme>{0x0501, "mxfp4"},
};

/// Lists the schemes of this build.
inline constexpr auto kEntries = std::tuple_cat(kOwnSchemes, kExtraSchemes);

/// A scheme's properties as a value, for code that is not a template of the scheme.
struct SchemeInfo {
  std::uint16_t id;
  std::string_view name;
  std::string_view element;  // name of the element format
  int element_bits;
  BlockShape block;
  SchemeLayout layout;
  OptionSet options, on_by_default;

  /// Returns true if the whole tensor has one scale.
  constexpr bool HasOneScale() const { return block == kWholeTensor; }
};

namespace internal {

template <Scheme... S>
constexpr TypeList<S...> TypesOf(const std::tuple<Entry<S>...>&) {
  return {};
}

template <Scheme S>
constexpr SchemeInfo Describe(const Entry<S>& entry) {
  return {entry.id,  entry.name, S::Element::kName, kBits<typename S::Element>,
          S::kBlock, S::kLayout, S::kOptions,       S::kOnByDefault};
}

constexpr bool NamesAndIdsAreUnique(const auto& schemes) {
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (schemes[i].id == schemes[j].id || schemes[i].name == schemes[j].name) return false;
    }
  }
  return true;
}

constexpr bool BlocksMatchLayouts(const auto& schemes) {
  for (const SchemeInfo& scheme : schemes) {
    if (scheme.HasOneScale() != (scheme.layout.lines_per_scale == 0)) return false;
  }
  return true;
}

}  // namespace internal

/// The schemes of this build as types.
using AllSchemes = decltype(internal::TypesOf(kEntries));
inline constexpr std::size_t kSchemeCount = AllSchemes::kSize;
/// Describes the schemes, in the order of AllSchemes.
inline constexpr auto kSchemes = std::apply(
    [](const auto&... entry) { return std::array{internal::Describe(entry)...}; }, kEntries);
static_assert(internal::NamesAndIdsAreUnique(kSchemes));
static_assert(internal::BlocksMatchLayouts(kSchemes),
              "lines_per_scale must be 0 if, and only if, the block is the whole tensor");

/// Returns the bytes of `codes` adjacent codes.
constexpr std::size_t CodeBytes(const SchemeInfo& scheme, std::size_t codes) {
  return CodeBytes(scheme.element_bits, codes);
}

}  // namespace narrowfloat
