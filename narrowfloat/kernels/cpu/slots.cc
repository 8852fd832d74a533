// SPDX-License-Identifier: Apache-2.0
// Binds the drivers to the slots that they serve: the instruction set, the format, the type of the
// items and the geometry.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/tile_drivers.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

template <class S, class T>
const cpu::FormatKernels& KernelsOf(const cpu::MicroKernels& micro) {
  constexpr auto kFormat =
      std::is_same_v<typename S::Element, E4M3> ? cpu::MicroFormat::kE4M3 : cpu::MicroFormat::kE5M2;
  return micro.formats[static_cast<std::size_t>(kFormat)][static_cast<std::size_t>(kDTypeOf<T>)];
}

template <class S, class T, Direction kDirection>
void RunReference(const QuantizeArgs& args) noexcept {
  ScalarKernels().quantize[kSchemeIndex<S>][static_cast<std::size_t>(kDirection)]
                          [static_cast<std::size_t>(kDTypeOf<T>)](args);
}

template <class S, class T, Direction kDirection>
void RunBlocks(const QuantizeArgs& args) noexcept {
  static constexpr cpu::BlockGeometry kGeometry{
      S::kBlock, kScaleBytes<S>, S::kLayout.lines_per_scale, S::kLayout.columnwise_transposed};
  const cpu::MicroKernels& micro = *MicroKernelsTable();
  const cpu::FormatKernels& kernels = KernelsOf<S, T>(micro);
  if constexpr (cpu::kHasMxScales<S>) {
    cpu::DriveBlocks(args, micro, kernels, kGeometry, cpu::MicroRule::kE8M0, {}, kDirection);
  } else {
    cpu::DriveBlocks(args, micro, kernels, kGeometry, cpu::MicroRule::kFloat32,
                     S::Prepare(0.0f, args.options), kDirection);
  }
}

template <class S, class T, Direction kDirection>
void RunWhole(const QuantizeArgs& args) noexcept {
  const float amax =
      kDirection == Direction::kColumnwise ? args.columnwise.amax : args.rowwise.amax;
  const float scale = S::ScaleBlock(amax, S::Prepare(amax, args.options)).scale;
  // Only a scale that the caller gave can be zero, negative, infinite or NaN; the reference handles
  // these.
  if (!(scale > 0.0f && scale <= kLargestFloat)) return RunReference<S, T, kDirection>(args);
  const cpu::MicroKernels& micro = *MicroKernelsTable();
  cpu::DriveWhole(args, micro, KernelsOf<S, T>(micro), scale, kDirection);
}

template <class S>
cpu::LineFactors FactorsOf(float amax, const ScaleOptions& options) {
  const typename S::TensorState state = S::Prepare(amax, options);
  return {state.amax, state.encode, state.encode_over_max, state.reciprocal_encode};
}

template <class S>
constexpr cpu::PackedGeometry PackedGeometryOf() {
  if constexpr (cpu::kHasTwoLevels<S>) {
    return {S::kBlock, cpu::PackRule::kTwoLevels, &FactorsOf<S>};
  } else {
    return {S::kBlock, cpu::PackRule::kE8M0, nullptr};
  }
}

template <class S, class T, Direction kDirection>
void RunPacked(const QuantizeArgs& args) noexcept {
  static constexpr cpu::PackedGeometry kGeometry = PackedGeometryOf<S>();
  constexpr auto kType = static_cast<std::size_t>(kDTypeOf<T>);
  if constexpr (cpu::kHasTwoLevels<S>) {
    // Only an amax that the caller gave can make the factor negative, zero or NaN; the reference
    // handles these.
    const bool rowwise = kDirection == Direction::kRowwise;
    const float amax = (rowwise ? args.rowwise : args.columnwise).amax;
    if (!(S::Prepare(amax, args.options).encode > 0.0f))
      return RunReference<S, T, kDirection>(args);
  }
  const cpu::MicroKernels& micro = *MicroKernelsTable();
  cpu::DrivePacked(args, micro, micro.amax[kType], (*PackKernelsTable())[kType], kGeometry,
                   kDirection);
}

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kBlocks) {
    return {&RunBlocks<S, T, kDirection>...};
  } else if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kWhole) {
    return {&RunWhole<S, T, kDirection>...};
  } else if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kPacked) {
    return {&RunPacked<S, T, kDirection>...};
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

template <class S, class T>
const cpu::FormatDecoders& DecodersOf(const cpu::DecodeKernels& decode) {
  using F = typename S::Element;
  constexpr auto kFormat = std::is_same_v<F, E4M3>   ? cpu::DecodedFormat::kE4M3
                           : std::is_same_v<F, E5M2> ? cpu::DecodedFormat::kE5M2
                                                     : cpu::DecodedFormat::kE2M1;
  return decode.formats[static_cast<std::size_t>(kFormat)][static_cast<std::size_t>(kDTypeOf<T>)];
}

template <class S, class T, Direction kDirection>
void RunDecoding(const DequantizeArgs& args) noexcept {
  cpu::DecodeGeometry geometry{
      S::kBlock.cols,   S::kLayout.lines_per_scale,       S::kLayout.scale_type,
      kCodesPerByte<S>, S::kLayout.columnwise_transposed, 0.0f};
  if constexpr (S::kLayout.scale_type == ScaleType::kE4M3)
    geometry.decode_factor = S::Prepare(args.in.amax, args.options).decode;
  const cpu::DecodeKernels& decode = *DecodeKernelsTable();
  cpu::DriveDecoding(args, *MicroKernelsTable(), decode, DecodersOf<S, T>(decode), geometry,
                     kDirection);
}

template <class S, Direction kDirection, class... T>
constexpr ByType<DequantizeFn> Decoders(TypeList<T...>) {
  if constexpr (cpu::HasDecoder<S>(kDirection)) {
    return {&RunDecoding<S, T, kDirection>...};
  } else {
    return {};
  }
}

template <class... S>
constexpr DequantizeSlots MakeDecodingTable(TypeList<S...>) {
  return {{{{Decoders<S, Direction::kRowwise>(FloatTypes{}),
             Decoders<S, Direction::kColumnwise>(FloatTypes{}),
             {}}}...}};
}

/// The slots of one type of items.
template <class T>
struct TileSlots {
  static constexpr auto kType = static_cast<std::size_t>(kDTypeOf<T>);
  static const cpu::ItemKernels& Items() { return (*ItemKernelsTable())[kType]; }

  static float Amax(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept {
    return cpu::DriveAmax(in, tile, Items());
  }
  static void ColumnSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                        float* sums) noexcept {
    cpu::DriveColumnSum(in, tile, Items(), sums);
  }
  static float AmaxSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                       float* sums) noexcept {
    return cpu::DriveAmaxSum(in, tile, Items(), sums);
  }
  static void ColumnAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                         float* amaxes) noexcept {
    cpu::DriveColumnAmax(in, tile, MicroKernelsTable()->amax[kType], amaxes);
  }
  static void Hadamard(const MatrixRows<const std::byte>& in, const Tile& tile,
                       std::uint32_t sign_mask, const MatrixRows<std::byte>& out) noexcept {
    cpu::DriveHadamard(in, tile, Items(), ScalarKernels().hadamard[kType], sign_mask, out);
  }
};

template <class... T>
constexpr ByType<AmaxFn> AmaxOf(TypeList<T...>) {
  return {&TileSlots<T>::Amax...};
}
template <class... T>
constexpr ByType<ColumnSumFn> ColumnSumOf(TypeList<T...>) {
  return {&TileSlots<T>::ColumnSum...};
}
template <class... T>
constexpr ByType<AmaxSumFn> AmaxSumOf(TypeList<T...>) {
  return {&TileSlots<T>::AmaxSum...};
}
template <class... T>
constexpr ByType<ColumnAmaxFn> ColumnAmaxOf(TypeList<T...>) {
  return {&TileSlots<T>::ColumnAmax...};
}
template <class... T>
constexpr ByType<HadamardFn> HadamardOf(TypeList<T...>) {
  return {&TileSlots<T>::Hadamard...};
}

}  // namespace

QuantizeSlots DrivenSlots() {
  return MakeTable(AllSchemes{});
}
ByType<AmaxFn> AmaxSlots() {
  return AmaxOf(FloatTypes{});
}
ByType<ColumnSumFn> ColumnSumSlots() {
  return ColumnSumOf(FloatTypes{});
}
ByType<AmaxSumFn> AmaxSumSlots() {
  return AmaxSumOf(FloatTypes{});
}
ByType<ColumnAmaxFn> ColumnAmaxSlots() {
  return ColumnAmaxOf(FloatTypes{});
}
ByType<HadamardFn> HadamardSlots() {
  return HadamardOf(FloatTypes{});
}

DequantizeSlots DequantizeTable() {
  return MakeDecodingTable(AllSchemes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
