// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/kernels/scalar/tables.h"

namespace narrowfloat::scalar {
namespace {

template <Scheme S, class T, Direction kDirection>
void Dequantize(const DequantizeArgs& args) noexcept {
  using Element = typename S::Element;
  constexpr bool kRowwise = kDirection == Direction::kRowwise;
  const DirectionBuffers<const std::byte>& in = args.in;
  for (std::size_t r = args.tile.row_begin; r < args.tile.row_end; ++r) {
    std::byte* out = args.out.Row(r);
    for (std::size_t c = args.tile.col_begin; c < args.tile.col_end; ++c) {
      std::size_t line = kRowwise ? r : c, pos = kRowwise ? c : r;
      const std::size_t item = in.strides.LineOffset(ScaleLine<S>(line)) +
                               in.strides.BlockOffset(ScaleBlockIndex<S>(pos));
      const typename S::TensorState state = S::Prepare(in.AmaxOf(line), args.options);
      const float scale = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, item), state);
      if constexpr (!kRowwise && !S::kLayout.columnwise_transposed) std::swap(line, pos);
      const std::uint32_t code = LoadCode<Element>(in.codes + line * in.code_stride, pos);
      StoreItem<T>(out, c, Decode<Element>(code) * scale);
    }
  }
}

template <Scheme S, Direction kDirection, class... T>
constexpr ByType<DequantizeFn> MakeTypes(TypeList<T...>) {
  return {&Dequantize<S, T, kDirection>...};
}

template <class... S>
constexpr DequantizeSlots MakeTable(TypeList<S...>) {
  return {{{{MakeTypes<S, Direction::kRowwise>(FloatTypes{}),
             MakeTypes<S, Direction::kColumnwise>(FloatTypes{}),
             {}}}...}};
}

}  // namespace

DequantizeSlots DequantizeTable() {
  return MakeTable(AllSchemes{});
}

}  // namespace narrowfloat::scalar
