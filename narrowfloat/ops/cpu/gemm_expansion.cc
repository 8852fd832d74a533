// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/gemm_expansion.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/cpu/gemm_operand.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {
namespace {

constexpr int kBFloat16Bits = BFloat16::kMantissaBits + 1;  // bits of a significand
constexpr int kLeastNormalExponent = -126;                  // for bfloat16 and fp32
constexpr int kOverflowExponent = 128;

/// Bounds: finite items are multiples of 2^low, and below 2^high in magnitude.
struct ExponentRange {
  int low, high;

  ExponentRange Shifted(int shift) const { return {low - shift, high - shift}; }
};

template <FloatFormat F>
constexpr ExponentRange RangeOf() {
  int high = 0;
  for (float power = 1.0f; power <= kMaxValue<F>; power *= 2.0f) ++high;
  return {1 - F::kBias - F::kMantissaBits, high};
}
static_assert(RangeOf<E4M3>().low == -9 && RangeOf<E4M3>().high == 9);
static_assert(RangeOf<E5M2>().low == -16 && RangeOf<E5M2>().high == 16);
static_assert(RangeOf<E2M1>().low == -1 && RangeOf<E2M1>().high == 3);

/// The scales of one direction of a tensor.
struct StoredScales {
  DirectionBuffers<const std::byte> buffers;
  std::size_t lines, blocks;
};

/// Calls visit(item) with the index of every stored scale except padding, in the order of memory if
/// lines or blocks are adjacent.
template <class Visit>
void VisitScales(const StoredScales& scales, const Visit& visit) {
  const ScaleStrides& strides = scales.buffers.strides;
  const auto lines = [&](const auto& inner) {
    for (std::size_t line = 0; line < scales.lines; ++line) inner(strides.LineOffset(line));
  };
  if (strides.LinesAreAdjacent()) {
    for (std::size_t block = 0; block < scales.blocks; ++block) {
      const std::size_t first = strides.BlockOffset(block);
      for (std::size_t line = 0; line < scales.lines; ++line) visit(first + line);
    }
  } else if (strides.BlocksAreAdjacent()) {
    lines([&](std::size_t first) {
      for (std::size_t block = 0; block < scales.blocks; ++block) visit(first + block);
    });
  } else {
    lines([&](std::size_t first) {
      for (std::size_t block = 0; block < scales.blocks; ++block)
        visit(first + strides.BlockOffset(block));
    });
  }
}

/// Range of the exponents of power-of-two scales, biased as in fp32.
struct ScaleCodes {
  std::uint32_t least = 255, largest = 0;
  bool has_least_power = false;  // E8M0's code 0, which all-zero blocks have
  bool are_powers = true;
};

ScaleCodes ReadE8M0(const StoredScales& scales) {
  ScaleCodes codes;
  VisitScales(scales, [&](std::size_t item) {
    const auto code = std::to_integer<std::uint32_t>(scales.buffers.scale_inv[item]);
    // For code 0, code - 1u wraps to the largest number, so that the minimum ignores it.
    codes.least = std::min(codes.least - 1u, code - 1u) + 1u;
    codes.largest = std::max(codes.largest, code == E8M0::kNanCode ? 0u : code);
    codes.has_least_power |= code == 0;
  });
  return codes;
}

ScaleCodes ReadFloats(const StoredScales& scales) {
  ScaleCodes codes;
  VisitScales(scales, [&](std::size_t item) {
    std::uint32_t bits;
    std::memcpy(&bits, scales.buffers.scale_inv + item * sizeof bits, sizeof bits);
    const std::uint32_t code = bits >> 23;
    codes.are_powers &= bits << 9 == 0 && code >= 1 && code < 255;
    codes.least = std::min(codes.least, code);
    codes.largest = std::max(codes.largest, code);
  });
  return codes;
}

/// Returns true if all blocks with scale code 0 contain zeros only.
bool LeastPowersScaleZeros(const ConstQuantizedView& view, Direction direction,
                           const StoredScales& scales) {
  const std::unique_ptr<StoredOperand> operand = MakeGemmOperand(view, direction);
  std::vector<float> values(operand->slab);
  for (std::size_t block = 0; block < scales.blocks; ++block) {
    const std::size_t begin = block * operand->slab;
    const std::size_t end = std::min(begin + operand->slab, operand->length);
    for (std::size_t line = 0; line < scales.lines; ++line) {
      const ScaleStrides& strides = scales.buffers.strides;
      const std::size_t item = strides.LineOffset(line) + strides.BlockOffset(block);
      if (scales.buffers.scale_inv[item] != std::byte{0}) continue;
      operand->Values({line, line + 1, begin, end}, {operand->slab, 1}, values.data());
      if (std::any_of(values.data(), values.data() + (end - begin),
                      [](float value) { return value != 0.0f; }))
        return false;
    }
  }
  return true;
}

/// Properties of an operand that do not depend on the other one.
struct Measured {
  ExponentRange range;  // of the items without a shift
  bool shifts;          // the scales are powers of two, so that a common factor may be moved out
  std::vector<double> factors;
};

constexpr int kExponentBias = 127;

std::optional<Measured> MeasurePowers(const ScaleCodes& codes, ExponentRange elements) {
  if (!codes.are_powers) return std::nullopt;
  if (codes.least > codes.largest) return Measured{elements, true, {1.0}};  // nothing finite
  return Measured{{elements.low + static_cast<int>(codes.least) - kExponentBias,
                   elements.high + static_cast<int>(codes.largest) - kExponentBias},
                  true,
                  {1.0}};
}

/// Range of amaxes for which the product with any block scale is a normal number of fp32.
constexpr float kLeastAmax = 0x1p-100f, kLargestAmax = 0x1p+118f;

/// Returns the factors of the amaxes; nullopt if decoded values would lose bits or overflow.
template <Scheme S>
std::optional<std::vector<double>> AmaxFactors(const ConstQuantizedView& view,
                                               Direction direction) {
  const ScaleOptions options = ScaleOptionsOf(view.spec, DType::kBFloat16);
  std::vector<double> factors;
  for (const float amax : LoadAmaxes(view, direction)) {
    if (amax != 0.0f && !(amax >= kLeastAmax && amax <= kLargestAmax)) return std::nullopt;
    factors.push_back(static_cast<double>(amax) *
                      static_cast<double>(S::Prepare(amax, options).decode));
  }
  return factors;
}

/// Returns options under which a two-level scheme decodes a scale to the value of its code.
ScaleOptions WithoutAmax(ScaleOptions options) {
  static_assert(1.0f / kMaxValue<E2M1> * kMaxValue<E2M1> == 1.0f);
  options.e4m3_max = 1.0f / kMaxValue<E2M1>;
  return options;
}

template <Scheme S>
std::optional<Measured> Measure(const ConstQuantizedView& view, Direction direction) {
  constexpr ExponentRange kElements = RangeOf<typename S::Element>();
  constexpr int kElementBits = S::Element::kMantissaBits + 1;
  const ScaleGrid grid = MakeScaleGrid(*view.spec.scheme, direction, FlattenShape(view.shape));
  const StoredScales scales{BuffersOf(view, direction), grid.lines, grid.blocks};
  if constexpr (WholeTensorScheme<S>) {
    static_assert(kElementBits <= kBFloat16Bits);
    float scale_inv;
    std::memcpy(&scale_inv, scales.buffers.scale_inv, sizeof scale_inv);
    return Measured{kElements, false, {static_cast<double>(scale_inv)}};
  } else if constexpr (TwoLevelScheme<S>) {
    constexpr ExponentRange kScales = RangeOf<typename S::Scale>();
    static_assert(kElementBits + S::Scale::kMantissaBits + 1 <= kBFloat16Bits);
    std::optional<std::vector<double>> factors = AmaxFactors<S>(view, direction);
    if (!factors) return std::nullopt;
    return Measured{
        {kElements.low + kScales.low, kElements.high + kScales.high}, false, *std::move(factors)};
  } else {
    static_assert(kElementBits <= kBFloat16Bits);
    if constexpr (S::kLayout.scale_type == ScaleType::kFloat32) {
      return MeasurePowers(ReadFloats(scales), kElements);
    } else {
      ScaleCodes codes = ReadE8M0(scales);
      if (codes.has_least_power && !LeastPowersScaleZeros(view, direction, scales)) codes.least = 0;
      return MeasurePowers(codes, kElements);
    }
  }
}

constexpr auto kMeasure = ArrayOf(AllSchemes{}, []<class S>() { return &Measure<S>; });

bool Fits(ExponentRange a, ExponentRange b, std::size_t length) {
  const auto terms =
      static_cast<int>(std::bit_width(length));  // 2^terms is above the number of terms
  return a.low >= kLeastNormalExponent && b.low >= kLeastNormalExponent &&
         a.high <= kOverflowExponent && b.high <= kOverflowExponent &&
         a.low + b.low >= kLeastNormalExponent && a.high + b.high + terms <= kOverflowExponent;
}

// Shifted items are below 2^kTop, so that sums of 2^48 products do not overflow.
constexpr int kTop = 40;

OperandExpansion MakeExpansion(const ConstQuantizedView& view, Direction direction, int shift,
                               std::vector<double> factors) {
  for (double& factor : factors) factor = std::ldexp(factor, shift);
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool rowwise = direction == Direction::kRowwise;
  const bool transposed = !rowwise && view.spec.scheme->layout.columnwise_transposed;
  return {view,
          direction,
          transposed ? MatrixShape{matrix.cols, matrix.rows} : matrix,
          rowwise || transposed,
          shift,
          std::move(factors)};
}

/// Returns the stored scales divided by 2^scale_shift.
std::vector<std::byte> ShiftedScales(const OperandExpansion& operand) {
  const ConstTensorView& stored = operand.view[ScaleInvRole(operand.direction)];
  const std::size_t count = FlattenShape(stored.shape).Size();
  std::vector<std::byte> scales(stored.data, stored.data + count * ItemSize(stored.dtype));
  if (stored.dtype == DType::kFloat32) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t bits;
      std::memcpy(&bits, &scales[i * sizeof bits], sizeof bits);
      bits -= static_cast<std::uint32_t>(operand.scale_shift) << 23;  // padding is unspecified
      std::memcpy(&scales[i * sizeof bits], &bits, sizeof bits);
    }
    return scales;
  }
  for (std::byte& scale : scales) {
    const int code = std::to_integer<int>(scale);
    if (code == static_cast<int>(E8M0::kNanCode)) continue;
    // Scales of all-zero blocks may be out of range; any scale gives the same values.
    scale = static_cast<std::byte>(
        std::clamp(code - operand.scale_shift, 0, static_cast<int>(E8M0::kMaxCode)));
  }
  return scales;
}

}  // namespace

std::optional<double> ProductExpansion::Factor() const {
  if (a.factors.size() != 1 || b.factors.size() != 1) return std::nullopt;
  return a.factors[0] * b.factors[0];
}

std::optional<double> ProductExpansion::NormalFactor() const {
  const std::optional<double> factor = Factor();
  const double magnitude = std::abs(factor.value_or(0.0));
  return magnitude >= 0x1p-126 && magnitude < 0x1p127 ? factor : std::nullopt;
}

std::optional<ProductExpansion> PlanExpansion(const ConstQuantizedView& a, Direction a_direction,
                                              const ConstQuantizedView& b, Direction b_direction) {
  const MatrixShape matrix = FlattenShape(a.shape);
  const std::size_t length = a_direction == Direction::kRowwise ? matrix.cols : matrix.rows;
  if (length == 0 || matrix.Size() == 0 || FlattenShape(b.shape).Size() == 0) return std::nullopt;
  std::optional<Measured> of_a = kMeasure[SchemeIndex(*a.spec.scheme)](a, a_direction);
  std::optional<Measured> of_b = kMeasure[SchemeIndex(*b.spec.scheme)](b, b_direction);
  if (!of_a || !of_b) return std::nullopt;
  int a_shift = 0, b_shift = 0;
  if (!Fits(of_a->range, of_b->range, length)) {
    a_shift = of_a->shifts ? of_a->range.high - kTop : 0;
    b_shift = of_b->shifts ? of_b->range.high - kTop : 0;
    if (!Fits(of_a->range.Shifted(a_shift), of_b->range.Shifted(b_shift), length))
      return std::nullopt;
  }
  return ProductExpansion{MakeExpansion(a, a_direction, a_shift, std::move(of_a->factors)),
                          MakeExpansion(b, b_direction, b_shift, std::move(of_b->factors))};
}

void Expand(const OperandExpansion& operand, std::size_t begin, std::size_t end, std::byte* items,
            const Execution& execution) {
  const SchemeInfo& scheme = *operand.view.spec.scheme;
  const Direction direction = operand.rows_are_lines ? Direction::kRowwise : Direction::kColumnwise;
  const KernelTable& kernels = execution.Kernels();
  const MatrixShape part = operand.rows_are_lines ? MatrixShape{end - begin, operand.shape.cols}
                                                  : MatrixShape{operand.shape.rows, end - begin};
  const std::size_t row_begin = operand.rows_are_lines ? begin : 0;
  const std::size_t col_begin = operand.rows_are_lines ? 0 : begin;
  const std::size_t item = ItemSize(DType::kBFloat16);
  // Kernels index rows and columns from the tensor's first row and column.
  std::byte* origin = items - (row_begin * part.cols + col_begin) * item;
  DequantizeArgs args{SchemeIndex(scheme),
                      direction,
                      DType::kBFloat16,
                      BuffersOf(operand.view, operand.direction),
                      operand.shape,
                      {},
                      {origin, static_cast<std::ptrdiff_t>(part.cols * item)},
                      WithoutAmax(ScaleOptionsOf(operand.view.spec, DType::kBFloat16))};
  args.in.line_amaxes = nullptr;
  args.in.amax = 1.0f;
  constexpr float kOne = 1.0f;
  std::vector<std::byte> scales;
  if (scheme.block == kWholeTensor) {
    args.in.scale_inv = reinterpret_cast<const std::byte*>(&kOne);
  } else if (operand.scale_shift != 0) {
    scales = ShiftedScales(operand);
    args.in.scale_inv = scales.data();
  }
  const TileGrid grid = MakeTileGrid(part, RowUnit(scheme, direction), ColUnit(scheme));
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    DequantizeArgs task = args;
    const Tile tile = grid[i];
    task.tile = {tile.row_begin + row_begin, tile.row_end + row_begin, tile.col_begin + col_begin,
                 tile.col_end + col_begin};
    kernels.Dequantize(task);
  });
}

bool HasBFloat16Products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__) && defined(__linux__) && defined(HWCAP2_BF16)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

}  // namespace narrowfloat
