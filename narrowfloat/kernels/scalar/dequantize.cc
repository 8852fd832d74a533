// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {
namespace {

template <Scheme S, class T>
void DecodeTile(const DequantizeArgs& args) noexcept {
  using Element = typename S::Element;
  const bool rowwise = args.direction == Direction::kRowwise;
  const DirectionBuffers<const std::byte>& in = args.in;
  for (std::size_t r = args.tile.row_begin; r < args.tile.row_end; ++r) {
    std::byte* out = args.out.Row(r);
    for (std::size_t c = args.tile.col_begin; c < args.tile.col_end; ++c) {
      std::size_t line = rowwise ? r : c, pos = rowwise ? c : r;
      const std::size_t item = in.strides.LineOffset(ScaleLine<S>(line)) +
                               in.strides.BlockOffset(ScaleBlockIndex<S>(pos));
      const typename S::TensorState state = S::Prepare(in.AmaxOf(line), args.options);
      const float scale = S::DecodeScale(LoadScaleInv<S>(in.scale_inv, item), state);
      if (!rowwise && !S::kLayout.columnwise_transposed) std::swap(line, pos);
      const std::uint32_t code = LoadCode<Element>(in.codes + line * in.code_stride, pos);
      StoreItem<T>(out, c, Decode<Element>(code) * scale);
    }
  }
}

}  // namespace

void KernelTable::Dequantize(const DequantizeArgs& args) const noexcept {
  static constexpr auto kRun = ArrayOf(AllSchemes{}, []<class S>() {
    return ArrayOf(FloatTypes{}, []<class T>() { return &DecodeTile<S, T>; });
  });
  kRun[args.scheme][static_cast<std::size_t>(args.dtype)](args);
}

}  // namespace narrowfloat
