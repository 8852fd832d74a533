// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/kernels/scalar/tables.h"

namespace narrowfloat::scalar {
namespace {

/// Visits the elements of `block`, given in lines and positions along them, as (row, col).
template <Direction kDirection, class Visit>
void ForEach(const LineRange& block, Visit&& visit) {
  for (std::size_t line = block.line_begin; line < block.line_end; ++line) {
    for (std::size_t along = block.along_begin; along < block.along_end; ++along) {
      if constexpr (kDirection == Direction::kRowwise) {
        visit(line, along);
      } else {
        visit(along, line);
      }
    }
  }
}

template <Scheme S, class T, Direction kDirection>
void EncodeBlock(const QuantizeArgs& args, const DirectionBuffers<std::byte>& out,
                 const LineRange& block, float scale) {
  ForEach<kDirection>(block, [&](std::size_t row, std::size_t col) {
    const float product = LoadItem<T>(args.in.Row(row), col) * scale;
    const std::uint32_t code = Encode<typename S::Element>(product);
    out.codes[CodeOffset<S, kDirection>(out.code_stride, row, col)] = static_cast<std::byte>(code);
  });
}

template <Scheme S, class T, Direction kDirection>
void QuantizeBlock(const QuantizeArgs& args, const DirectionBuffers<std::byte>& out,
                   const typename S::TensorState& state, const LineRange& block) {
  float amax = 0.0f;
  ForEach<kDirection>(block, [&](std::size_t row, std::size_t col) {
    const float magnitude = Magnitude(LoadItem<T>(args.in.Row(row), col));
    amax = magnitude > amax ? magnitude : amax;
  });
  const BlockScale scale = S::ScaleBlock(amax, state);
  const std::size_t offset = out.strides.BlockOffset(ScaleBlockIndex<S>(block.along_begin));
  for (std::size_t line = block.line_begin; line < block.line_end;
       line += S::kLayout.lines_per_scale) {
    StoreScaleInv<S>(out.scale_inv, out.strides.LineOffset(ScaleLine<S>(line)) + offset,
                     scale.scale_inv);
  }
  EncodeBlock<S, T, kDirection>(args, out, block, scale.scale);
}

template <Scheme S, class T, Direction kDirection>
void QuantizeDirection(const QuantizeArgs& args, const DirectionBuffers<std::byte>& out) {
  const typename S::TensorState state = S::Prepare(args.amax, args.options);
  const LineRange range = LinesOf<kDirection>(args.tile);
  if constexpr (WholeTensorScheme<S>) {
    EncodeBlock<S, T, kDirection>(args, out, range, S::ScaleBlock(args.amax, state).scale);
  } else {
    // The scheme's block, seen along the direction's lines.
    for (std::size_t line = range.line_begin; line < range.line_end; line += S::kBlock.rows) {
      for (std::size_t along = range.along_begin; along < range.along_end;
           along += S::kBlock.cols) {
        QuantizeBlock<S, T, kDirection>(args, out, state,
                                        {line, std::min(line + S::kBlock.rows, range.line_end),
                                         along, std::min(along + S::kBlock.cols, range.along_end)});
      }
    }
  }
}

template <Scheme S, class T, Direction kDirection>
void Quantize(const QuantizeArgs& args) noexcept {
  if (args.measured != nullptr) {
    *args.measured = AmaxTable()[static_cast<std::size_t>(kDTypeOf<T>)](args.in, args.tile);
  }
  if constexpr (kDirection != Direction::kColumnwise) {
    QuantizeDirection<S, T, Direction::kRowwise>(args, args.rowwise);
  }
  if constexpr (kDirection != Direction::kRowwise) {
    QuantizeDirection<S, T, Direction::kColumnwise>(args, args.columnwise);
  }
}

template <Scheme S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> MakeTypes(TypeList<T...>) {
  return {&Quantize<S, T, kDirection>...};
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{MakeTypes<S, Direction::kRowwise>(FloatTypes{}),
             MakeTypes<S, Direction::kColumnwise>(FloatTypes{}),
             MakeTypes<S, Direction::kBoth>(FloatTypes{})}}...}};
}

}  // namespace

QuantizeSlots QuantizeTable() {
  return MakeTable(AllSchemes{});
}

}  // namespace narrowfloat::scalar
