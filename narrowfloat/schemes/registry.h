// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "narrowfloat/numerics/type_list.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/fp8_tensor.h"
#include "narrowfloat/schemes/mxfp4.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"
#include "narrowfloat/schemes/scheme.h"

// A build may add schemes: NF_EXTRA_SCHEMES names a header that defines `ExtraSchemes`.
#if defined(NF_EXTRA_SCHEMES)
#include NF_EXTRA_SCHEMES
#else
namespace narrowfloat {
using ExtraSchemes = TypeList<>;
}
#endif

namespace narrowfloat {

/// Lists the library's schemes. Ids are stored in files. AllSchemes lists those of this build.
using OwnSchemes =
    TypeList<PerTensorFp8Scheme<E4M3, Fp8TensorE4M3>, PerTensorFp8Scheme<E5M2, Fp8TensorE5M2>,
             Mxfp8Scheme<E4M3, Mxfp8E4M3>, Mxfp8Scheme<E5M2, Mxfp8E5M2>,
             Mxfp8SquareScheme<E4M3, Mxfp8TileE4M3>, Mxfp8SquareScheme<E5M2, Mxfp8TileE5M2>,
             BlockFp8Scheme<E4M3, Fp8BlockE4M3>, BlockFp8Scheme<E5M2, Fp8BlockE5M2>,
             SquareBlockFp8Scheme<E4M3, Fp8TileE4M3>, SquareBlockFp8Scheme<E5M2, Fp8TileE5M2>,
             Nvfp4Scheme<Nvfp4OneDimensional>, Nvfp4SquareScheme<Nvfp4TwoDimensional>,
             Mxfp4Scheme<Mxfp4OneDimensional>>;
#if defined(NF_ONLY_EXTRA_SCHEMES)  // a test of these alone, which builds faster
using AllSchemes = ExtraSchemes;
#else
using AllSchemes = Join<OwnSchemes, ExtraSchemes>;
#endif
inline constexpr std::size_t kSchemeCount = AllSchemes::kSize;

/// A scheme as a value, for code that runs before a kernel is chosen.
struct SchemeInfo {
  std::uint16_t id;  // stored in files and XLA attributes; never reused
  std::string_view name;
  std::string_view element;  // name of the element format
  int element_bits;
  BlockShape block;
  SchemeLayout layout;
  OptionSet options, on_by_default;
};

namespace internal {

template <Scheme... S>
constexpr auto Describe(TypeList<S...>) {
  return std::array{SchemeInfo{S::kId, S::kName, S::Element::kName, kBits<typename S::Element>,
                               S::kBlock, S::kLayout, S::kOptions, S::kOnByDefault}...};
}

constexpr bool NamesAndIdsAreUnique(const auto& schemes) {
  for (std::size_t i = 0; i < schemes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (schemes[i].id == schemes[j].id || schemes[i].name == schemes[j].name) return false;
    }
  }
  return true;
}

}  // namespace internal

/// Returns the bytes of `codes` codes stored side by side.
constexpr std::size_t CodeBytes(const SchemeInfo& scheme, std::size_t codes) {
  return codes * static_cast<std::size_t>(scheme.element_bits) / 8;
}

inline constexpr auto kSchemes = internal::Describe(AllSchemes{});
static_assert(internal::NamesAndIdsAreUnique(kSchemes));

/// Position of a scheme in AllSchemes.
template <Scheme S>
inline constexpr std::size_t kSchemeIndex = [] {
  std::size_t index = 0;
  while (kSchemes[index].id != S::kId) ++index;
  return index;
}();

}  // namespace narrowfloat
