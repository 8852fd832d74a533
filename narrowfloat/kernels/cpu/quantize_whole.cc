// SPDX-License-Identifier: Apache-2.0
// Quantizes by whole-tensor schemes: one scale, known beforehand; columnwise codes are transposed.
#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_whole.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;

constexpr std::size_t kRunItems =
    4096;  // items that are encoded before their largest magnitude is checked

/// Returns the vector in a form that the compiler does not load again for its next use. A load that
/// crosses lines costs twice, and a cast of unaligned bfloat16 with three such loads of each vector
/// took 1.8 times as long as one of aligned items.
template <class V>
HWY_INLINE V LoadedOnce(V vector) {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(vector.raw));
#endif
  return vector;
}

/// Encodes `count` items of a row, to all of `out`, and prefetches as many at `next`. `largest`
/// collects their magnitudes' patterns.
template <FloatFormat F, class T, Inputs kInputs, class Scale, class... Out>
HWY_INLINE void EncodeRow(const std::byte* in, const std::byte* next, std::size_t count,
                          const Scale& scale, hn::Vec<MagnitudeTag<T> >& largest,
                          const Out&... out) {
  const D8 d8;
  const MagnitudeTag<T> di;
  const std::size_t lanes = hn::Lanes(d8);
  const auto run = [&](const std::byte* from) NF_INLINE_ATTR {
    alignas(64) std::byte items[kMaxLanes * kItemSize<T>];  // stays in registers
    for (std::size_t i = 0; i < lanes * kItemSize<T>; i += hn::Lanes(di) * kItemSize<T>) {
      const auto loaded = LoadedOnce(LoadItems(di, from + i));
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, loaded));
      hn::Store(loaded, di, reinterpret_cast<hn::TFromD<decltype(di)>*>(items + i));
    }
    return EncodeRun<F, T, kInputs>(d8, items, scale);
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    PrefetchBytes(next + i * kItemSize<T>, lanes * kItemSize<T>);
    const auto codes = run(in + i * kItemSize<T>);
    (out.Put(d8, codes, i), ...);
  }
  if (i == count) return;
  ZeroPadded<T, kMaxLanes> tail;
  tail.Fill(in + i * kItemSize<T>, count - i);
  alignas(64) std::uint8_t staged[kMaxLanes];
  hn::Store(run(tail.items), d8, staged);
  (std::memcpy(out.to + i, staged, count - i), ...);
}

/// Encodes under one scale, and finds the largest magnitude of the items.
template <FloatFormat F, class T>
struct WholeEncoder {
  // The amax times the scale computed from it may exceed the largest value by a rounding error.
  static constexpr float kRoundsToMax = kMaxValue<F> * (1.0f + 0x1p-10f);

  // For finite float16, kHalfRebias is multiplied into the scale.
  using FiniteScale =
      std::conditional_t<std::is_same_v<T, Float16>, RebiasedScale<DF>, UniformScale<DF> >;

  FiniteScale finite;
  UniformScale<DF> uniform;
  float scale;
  std::uint32_t largest = 0;  // pattern of the largest magnitude so far
  bool has_special = false;   // not all items of this tile are finite

  explicit WholeEncoder(float tensor_scale)
      : uniform{hn::Set(DF(), tensor_scale)}, scale(tensor_scale) {
    if constexpr (std::is_same_v<T, Float16>) {
      has_special = scale >= FiniteScale::kTooLarge;
      finite.scale = hn::Set(DF(), has_special ? scale : scale * kHalfRebias);
    } else {
      finite = uniform;
    }
  }

  /// Calls encode(inputs, scale, largest) for finite items and, if they were not, again for all
  /// inputs. `encode` may write only bytes that nothing reads before the second call.
  template <class Encode>
  HWY_INLINE void Run(const Encode& encode) {
    const MagnitudeTag<T> di;
    if (!has_special) {
      auto magnitudes = hn::Zero(di);
      encode(std::integral_constant<Inputs, Inputs::kFinite>(), finite, magnitudes);
      const std::uint32_t bits = LargestLane(di, magnitudes);
      has_special = bits >= kInfinityBits<T> || MagnitudeValue<T>(bits) * scale > kRoundsToMax;
      if (!has_special) {
        largest = std::max(largest, bits);
        return;
      }
    }
    auto magnitudes = hn::Zero(di);
    encode(std::integral_constant<Inputs, Inputs::kAll>(), uniform, magnitudes);
    largest = std::max(largest, LargestLane(di, magnitudes));
  }
};

template <FloatFormat F, class T>
HWY_INLINE void EncodeRows(const QuantizeArgs& args, WholeEncoder<F, T>& encoder) {
  constexpr std::size_t kAhead = 4096;  // bytes
  StagedWriter<kRunItems> writer(args.nontemporal);
  const auto encode_row = [&](const std::byte* in, std::size_t count,
                              std::byte* out) NF_INLINE_ATTR {
    // The first run ends at a cache line, so that the others need no staging.
    const std::size_t head = args.nontemporal ? BytesToLine(out) : 0;
    for (std::size_t i = 0, run_items; i < count; i += run_items) {
      run_items = std::min(i < head ? head : kRunItems, count - i);
      const VectorWriter codes = writer.Open(D8(), out + i);
      encoder.Run([&](auto items, const auto& scale, auto& largest) NF_INLINE_ATTR {
        const std::byte* from = in + i * kItemSize<T>;
        EncodeRow<F, T, items()>(from, from + kAhead, run_items, scale, largest, codes);
      });
      writer.Close(codes, out + i, run_items);
    }
  };
  const Tile& tile = args.tile;
  const std::size_t cols = tile.col_end - tile.col_begin, rows = tile.row_end - tile.row_begin;
  const auto out_row = [&](std::size_t r) {
    return args.rowwise.codes + r * args.rowwise.code_stride + tile.col_begin;
  };
  if (args.in.IsContiguous(cols * kItemSize<T>) && args.rowwise.code_stride == cols) {
    return encode_row(args.in.Row(tile.row_begin), rows * cols, out_row(tile.row_begin));
  }
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    encode_row(args.in.Row(r) + tile.col_begin * kItemSize<T>, cols, out_row(r));
  }
}

/// Encodes patches in the first-level cache and writes their transposes. With kKeepRows, writes the
/// rows too, directly.
template <FloatFormat F, class T, bool kKeepRows>
class TransposedEncoder {
 public:
  TransposedEncoder(const QuantizeArgs& args, WholeEncoder<F, T>& encoder)
      : args_(args), encoder_(encoder), transposer_(args.nontemporal) {}

  void Run(const Tile& tile) {
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kTransposedRun) {
      const std::size_t rows = std::min(kTransposedRun, tile.row_end - r);
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += kPatchCols) {
        const Rect square{r, rows, c, std::min(kPatchCols, tile.col_end - c)};
        Encode(square);
        transposer_.Transpose(patch_, kPatchCols, rows, square.cols,
                              args_.columnwise.codes + c * args_.columnwise.code_stride + r,
                              args_.columnwise.code_stride);
      }
    }
  }

 private:
  static constexpr std::size_t kAhead =
      16;  // rows; so many do not evict each other from a cache set

  void Encode(const Rect& square) {
    encoder_.Run([&](auto items, const auto& scale, auto& largest) NF_INLINE_ATTR {
      for (std::size_t i = 0; i < square.rows; ++i) {
        const std::byte* next = Ahead(square, i);
        const std::byte* row = args_.in.Row(square.row + i) + square.col * kItemSize<T>;
        const VectorWriter codes = WriterAt(D8(), patch_ + i * kPatchCols, false);
        if constexpr (kKeepRows) {
          const DirectionBuffers<std::byte>& out = args_.rowwise;
          std::byte* to = out.codes + (square.row + i) * out.code_stride + square.col;
          EncodeRow<F, T, items()>(row, next, square.cols, scale, largest, codes,
                                   WriterAt(D8(), to, args_.nontemporal));
        } else {
          EncodeRow<F, T, items()>(row, next, square.cols, scale, largest, codes);
        }
      }
    });
  }

  HWY_INLINE const std::byte* Ahead(const Rect& square, std::size_t i) const {
    const std::size_t row = i + kAhead;
    if (row < square.rows) return args_.in.Row(square.row + row) + square.col * kItemSize<T>;
    return NextItems<T>(args_, square.row + row % square.rows, square.col + square.cols,
                        kTransposedRun);
  }

  const QuantizeArgs& args_;
  WholeEncoder<F, T>& encoder_;
  PatchTransposer<kTransposedRun> transposer_;
  alignas(64) std::byte patch_[kTransposedRun * kPatchCols] = {};  // short ones leave zeros
};

template <class S, class T, Direction kDirection>
struct QuantizeWhole {
  static void Run(const QuantizeArgs& args) noexcept {
    using F = typename S::Element;
    const float amax =
        kDirection == Direction::kColumnwise ? args.columnwise.amax : args.rowwise.amax;
    const float scale = S::ScaleBlock(amax, S::Prepare(amax, args.options)).scale;
    // Only a scale that the caller gave can be zero, negative, infinite or NaN; the reference
    // handles these.
    if (!(scale > 0.0f && scale <= kLargestFloat)) {
      ScalarKernels().quantize[kSchemeIndex<S>][static_cast<std::size_t>(kDirection)]
                              [static_cast<std::size_t>(kDTypeOf<T>)](args);
      return;
    }
    WholeEncoder<F, T> encoder(scale);
    if constexpr (kDirection == Direction::kRowwise) {
      EncodeRows<F, T>(args, encoder);
    } else {
      TransposedEncoder<F, T, kDirection == Direction::kBoth>(args, encoder).Run(args.tile);
    }
    if (args.amax_out != nullptr) *args.amax_out = MagnitudeValue<T>(encoder.largest);
  }
};

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kWhole) {
    return {&QuantizeWhole<S, T, kDirection>::Run...};
  } else {
    return {};
  }
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Types<S, Direction::kRowwise>(FloatTypes{}),
             Types<S, Direction::kColumnwise>(FloatTypes{}),
             Types<S, Direction::kBoth>(FloatTypes{})}}...}};
}

QuantizeSlots Table() {
  return MakeTable(AllSchemes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Table);
namespace cpu {
QuantizeSlots QuantizeWholeTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
