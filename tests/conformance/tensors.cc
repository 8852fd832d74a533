// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

bool AllGuard(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == kGuard; });
}

/// Masks of a type's bit patterns: the sign, all bits of the exponent, its lowest bit.
struct Fields {
  std::uint32_t sign, exponent, least;
};
Fields FieldsOf(DType dtype) {
  if (dtype == DType::kFloat32) return {0x80000000u, 0x7F800000u, 0x00800000u};
  if (dtype == DType::kBFloat16) return {0x8000u, 0x7F80u, 0x0080u};
  return {0x8000u, 0x7C00u, 0x0400u};
}

}  // namespace

std::string PlacementName(Placement placement) {
  constexpr const char* kNames[] = {"contiguous",    "unaligned",    "padded_rows",
                                    "reversed_rows", "padded_outer", "inside_line"};
  return kNames[static_cast<std::size_t>(placement)];
}

std::size_t MisalignmentOf(Placement placement) {
  if (placement == Placement::kUnaligned) return 1;
  return placement == Placement::kInsideLine ? 16 : 0;
}

FloatTensor::FloatTensor(DType dtype, Shape shape, Placement placement)
    : dtype_(dtype), shape_(std::move(shape)) {
  const MatrixShape matrix = FlattenShape(shape_);
  cols_ = matrix.cols;
  const std::size_t row_bytes = cols_ * ItemSize(dtype);
  const std::size_t row_step = row_bytes + (placement == Placement::kPaddedRows ? 7 : 0);
  const std::size_t inner_rows =
      shape_.size() > 2
          ? matrix.rows / std::max<std::size_t>(1, static_cast<std::size_t>(shape_.front()))
          : 1;
  const std::size_t outer_gap = placement == Placement::kPaddedOuter ? 22 : 0;
  const std::size_t start = kGuardBytes + MisalignmentOf(placement);
  std::size_t end = start;
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    const std::size_t outer = inner_rows == 0 ? 0 : row / inner_rows;
    offsets_.push_back(start + row * row_step + outer * outer_gap);
    end = offsets_.back() + row_bytes;
  }
  // Ends at the last item, so that ASan reports a read past it.
  memory_.assign(end, kGuard);
  if (placement == Placement::kReversedRows) std::ranges::reverse(offsets_);
  if (placement == Placement::kContiguous || MisalignmentOf(placement) != 0) return;

  strides_.assign(shape_.size(), static_cast<std::ptrdiff_t>(ItemSize(dtype)));
  const std::ptrdiff_t direction = placement == Placement::kReversedRows ? -1 : 1;
  std::ptrdiff_t step = direction * static_cast<std::ptrdiff_t>(row_step);
  for (std::size_t i = shape_.size(); i-- > 1;) {
    const bool outermost = i == 1;
    strides_[i - 1] = step + (outermost ? static_cast<std::ptrdiff_t>(outer_gap) : 0);
    step *= static_cast<std::ptrdiff_t>(shape_[i - 1]);
  }
}

TensorView FloatTensor::View() {
  std::byte* data = memory_.data() + (offsets_.empty() ? memory_.size() : offsets_.front());
  return {data, dtype_, shape_, strides_, Device::kCpu};
}

ConstTensorView FloatTensor::ConstView() const {
  return const_cast<FloatTensor*>(this)->View();  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

const std::byte* FloatTensor::At(std::size_t index) const {
  return memory_.data() + offsets_[index / cols_] + index % cols_ * ItemSize(dtype_);
}

std::uint32_t FloatTensor::Bits(std::size_t index) const {
  std::uint32_t bits = 0;
  std::memcpy(&bits, At(index), ItemSize(dtype_));
  return bits;
}

void FloatTensor::SetBits(std::size_t index, std::uint32_t bits) {
  std::memcpy(memory_.data() + (At(index) - memory_.data()), &bits, ItemSize(dtype_));
}

double FloatTensor::Value(std::size_t index) const {
  const std::uint32_t bits = Bits(index);
  if (dtype_ == DType::kFloat32) return static_cast<double>(std::bit_cast<float>(bits));
  return ReferenceCodecOf(DTypeName(dtype_)).Value(bits);
}

std::vector<std::uint32_t> FloatTensor::AllBits() const {
  std::vector<std::uint32_t> bits(size());
  for (std::size_t i = 0; i < size(); ++i) bits[i] = Bits(i);
  return bits;
}

void FloatTensor::Assign(const FloatTensor& other) {
  for (std::size_t i = 0; i < size(); ++i) SetBits(i, other.Bits(i));
}

bool FloatTensor::GuardsAreWhole() const {
  LineBytes copy = memory_;
  for (const std::size_t offset : offsets_) {
    std::fill_n(copy.begin() + static_cast<std::ptrdiff_t>(offset), cols_ * ItemSize(dtype_),
                kGuard);
  }
  return AllGuard(copy.data(), copy.data() + copy.size());
}

QuantizedBuffers::QuantizedBuffers(const QuantSpec& spec, const Shape& shape,
                                   std::size_t misalignment)
    : plan_(PlanQuantize(spec, shape)), misalignment_(misalignment) {
  view.spec = spec;
  view.shape = shape;
  for (const BufferPlan& buffer : plan_) {
    const auto role = static_cast<std::size_t>(buffer.role);
    const auto storage = static_cast<std::size_t>(buffer.storage);
    if (role == storage) {
      memory_[role].assign(BufferBytes(buffer) + 2 * kGuardBytes + misalignment, kGuard);
    }
    std::byte* data = memory_[storage].data() + kGuardBytes + misalignment;
    view[buffer.role] = {data, buffer.dtype, buffer.shape, {}, Device::kCpu};
  }
}

std::size_t QuantizedBuffers::Bytes(Role role) const {
  for (const BufferPlan& buffer : plan_) {
    if (buffer.role == role) return BufferBytes(buffer);
  }
  return 0;
}

bool QuantizedBuffers::GuardsAreWhole() const {
  return std::ranges::all_of(memory_, [this](const LineBytes& memory) {
    if (memory.empty()) return true;
    const std::byte* end = memory.data() + memory.size();
    return AllGuard(memory.data(), memory.data() + kGuardBytes + misalignment_) &&
           AllGuard(end - kGuardBytes, end);
  });
}

std::string Difference(const QuantizedBuffers& expected, const QuantizedBuffers& got) {
  for (const BufferPlan& buffer : expected.plan()) {
    const std::size_t bytes = BufferBytes(buffer);
    const std::byte* a = expected.Data(buffer.role);
    const std::byte* b = got.Data(buffer.role);
    const auto at = static_cast<std::size_t>(std::mismatch(a, a + bytes, b).first - a);
    if (at == bytes) continue;
    return fmt::format("{} ({}): byte {} of {}, expected {:02x}, got {:02x}", RoleName(buffer.role),
                       ShapeText(buffer.shape), at, bytes, static_cast<unsigned>(a[at]),
                       static_cast<unsigned>(b[at]));
  }
  return got.GuardsAreWhole() ? "" : "bytes around a buffer were written to";
}

std::string Difference(const FloatTensor& expected, const FloatTensor& got) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected.Bits(i) == got.Bits(i)) continue;
    return fmt::format("item {} of {}: expected {:08x}, got {:08x}", i, expected.size(),
                       expected.Bits(i), got.Bits(i));
  }
  return got.GuardsAreWhole() ? "" : "bytes around the rows were written to";
}

std::uint64_t RunSeed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("NF_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }();
  return seed;
}

std::vector<std::uint32_t> SpecialPatterns(DType dtype, Range range) {
  const auto [sign, exponent, least] = FieldsOf(dtype);
  const std::uint32_t largest = exponent - 1u;
  std::vector<std::uint32_t> patterns{0u, sign, 1u, sign | 1u, least - 1u, largest, sign | largest};
  if (range == Range::kAll) {
    for (const std::uint32_t pattern :
         {exponent, sign | exponent, exponent | least >> 1, sign | exponent | 1u})
      patterns.push_back(pattern);
  }
  return patterns;
}

void FillWithSpecials(FloatTensor& tensor, std::mt19937_64& random, Range range) {
  if (tensor.size() == 0) return;
  const auto [sign, exponent_mask, least] = FieldsOf(tensor.dtype());
  const std::uint32_t mask = sign | (sign - 1u);
  const std::vector<std::uint32_t> specials = SpecialPatterns(tensor.dtype(), range);
  const std::size_t cols =
      static_cast<std::size_t>(tensor.shape().empty() ? 1 : tensor.shape().back());
  const std::uint32_t one = (exponent_mask >> 1) & exponent_mask & ~(least - 1u);
  std::uint32_t window = 0;
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const std::uint64_t draw = random();
    // A window of exponents, which changes every 37 items, so that blocks have different scales.
    if (i % 37 == 0) {
      window = static_cast<std::uint32_t>(random()) & exponent_mask;
      if (range == Range::kNear)
        window = one + least * static_cast<std::uint32_t>(random() % 9) - 4 * least;
    }
    const bool zero_block = (i / cols / 32 + i % cols / 32) % 7 == 3;
    std::uint32_t bits = static_cast<std::uint32_t>(draw) & mask;
    if (draw >> 62 != 0 || range != Range::kAll) {
      const std::uint32_t near =
          window > 4 * least ? window - least * (static_cast<std::uint32_t>(draw >> 40) & 3u)
                             : window;
      bits = (bits & ~exponent_mask) | (near >= exponent_mask ? exponent_mask - least : near);
    }
    if ((draw >> 33) % 61 == 0) bits = specials[(draw >> 40) % specials.size()];
    if (range == Range::kNear && (bits & exponent_mask) > one + 8 * least) bits &= sign;
    if (zero_block) bits &= sign;
    tensor.SetBits(i, bits);
  }
}

bool Fits(const QuantSpec& spec, const Shape& shape) {
  const MatrixShape matrix = FlattenShape(shape);
  if (spec.rht && matrix.rows % 16 != 0) return false;
  const bool packed = spec.scheme->element_bits == 4;
  return !packed ||
         ((!spec.rowwise || matrix.cols % 2 == 0) && (!spec.columnwise || matrix.rows % 2 == 0));
}

std::vector<QuantSpec> DirectionsOf(const QuantSpec& spec) {
  std::vector<QuantSpec> specs;
  for (const bool swizzled : {false, true}) {
    if (swizzled && !spec.scheme->layout.swizzles) continue;
    for (const auto& [rowwise, columnwise] :
         {std::pair{true, false}, {false, true}, {true, true}}) {
      specs.push_back(spec);
      specs.back().rowwise = rowwise;
      specs.back().columnwise = columnwise;
      specs.back().swizzled = swizzled;
    }
  }
  return specs;
}

}  // namespace narrowfloat::conformance
