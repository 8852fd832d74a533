// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/kernels/scalar/tables.h"

namespace narrowfloat::scalar {
namespace {

template <Scheme S, class T, Direction kDirection>
void Dequantize(const DequantizeArgs& args) noexcept {
  constexpr bool kRowwise = kDirection == Direction::kRowwise;
  const DirectionBuffers<const std::byte>& in = args.in;
  for (std::size_t r = args.tile.row_begin; r < args.tile.row_end; ++r) {
    std::byte* out = args.out.Row(r);
    for (std::size_t c = args.tile.col_begin; c < args.tile.col_end; ++c) {
      const std::size_t line = ScaleLine<S>(kRowwise ? r : c);
      const std::size_t block = ScaleBlockIndex<S>(kRowwise ? c : r);
      const std::size_t item = in.strides.LineOffset(line) + in.strides.BlockOffset(block);
      const typename S::TensorState state = S::Prepare(in.AmaxOf(kRowwise ? r : c), args.options);
      const float scale = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, item), state);
      const std::uint32_t code = LoadCode<S, kDirection>(in, r, c);
      StoreItem<T>(out, c, Decode<typename S::Element>(code) * scale);
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
