// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::conformance {

/// Placement of a tensor of floats in memory.
enum class Placement {
  kContiguous,
  kUnaligned,     // begins one byte past a cache line
  kPaddedRows,    // an odd number of bytes between rows
  kReversedRows,  // negative strides
  kPaddedOuter,   // a gap after each outermost index: rows of rank 3 are not equally spaced
  kInsideLine,    // begins 16 bytes past a cache line, as NumPy's large arrays do
};
/// The placements of small tensors. Only large tensors need kInsideLine.
inline constexpr Placement kPlacements[] = {Placement::kContiguous, Placement::kUnaligned,
                                            Placement::kPaddedRows, Placement::kReversedRows,
                                            Placement::kPaddedOuter};
std::string PlacementName(Placement placement);
/// Returns the distance in bytes from the start of a cache line to the tensor's first byte.
std::size_t MisalignmentOf(Placement placement);

/// Allocates memory that begins at a cache line, as memory of large tensors does. Kernels store
/// aligned outputs in another way, so that the alignment must not depend on chance.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* items, std::size_t /*count*/) { ::operator delete(items, kLine); }
  friend bool operator==(const LineAllocator&, const LineAllocator&) = default;
};
using LineBytes = std::vector<std::byte, LineAllocator<std::byte>>;

/// A float tensor that owns its memory, with guard bytes before it and between its rows.
class FloatTensor {
 public:
  FloatTensor(DType dtype, Shape shape, Placement placement = Placement::kContiguous);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return offsets_.size() * cols_; }
  TensorView View();
  ConstTensorView ConstView() const;

  /// Returns the item `index` in row-major order of the shape, for all placements.
  std::uint32_t Bits(std::size_t index) const;
  void SetBits(std::size_t index, std::uint32_t bits);
  double Value(std::size_t index) const;
  /// Returns all items in row-major order.
  std::vector<std::uint32_t> AllBits() const;
  /// Copies the items of `other`. The placements may differ. Requires: the shapes are equal.
  void Assign(const FloatTensor& other);
  /// Returns true if the bytes before and between the rows are unchanged.
  bool GuardsAreWhole() const;

 private:
  const std::byte* At(std::size_t index) const;

  DType dtype_;
  Shape shape_;
  std::size_t cols_;
  std::vector<std::ptrdiff_t> strides_;
  std::vector<std::size_t> offsets_;  // from the start of memory_ to each row
  LineBytes memory_;
};

/// The planned buffers of a quantized tensor, each between guard bytes and filled with a pattern:
/// tests find bytes that a verb does not write.
class QuantizedBuffers {
 public:
  QuantizedBuffers(const QuantSpec& spec, const Shape& shape, std::size_t misalignment = 0);

  QuantizedView view;
  const std::vector<BufferPlan>& plan() const { return plan_; }
  std::byte* Data(Role role) { return view[role].data; }
  const std::byte* Data(Role role) const { return view[role].data; }
  std::size_t Bytes(Role role) const;
  bool Has(Role role) const { return Data(role) != nullptr; }
  bool GuardsAreWhole() const;

 private:
  std::vector<BufferPlan> plan_;
  std::array<LineBytes, kRoleCount> memory_;
  std::size_t misalignment_;
};

/// Returns the first difference of two quantized tensors of one spec and shape: the buffer, the
/// byte, its expected and its actual value; "" if they are equal and got's guards are unchanged.
std::string Difference(const QuantizedBuffers& expected, const QuantizedBuffers& got);
/// Returns the first difference of two float tensors of one type and shape, compared as bits.
std::string Difference(const FloatTensor& expected, const FloatTensor& got);

/// Returns the seed of this run's random tensors: NF_TEST_SEED if that is set, else a random one.
/// Messages of failed tests print it, to repeat the run.
std::uint64_t RunSeed();

/// Ranges of FillWithSpecials: all patterns, finite numbers, finite numbers near 1. Kernels are
/// faster for finite numbers than for NaN and infinities, and fastest for numbers near each other.
enum class Range { kAll, kNumbers, kNear };
inline constexpr Range kRanges[] = {Range::kAll, Range::kNumbers, Range::kNear};

/// Returns the patterns of zero, of the smallest and the largest subnormal, and of the largest
/// finite number, most with both signs; with kAll also of infinities and of a quiet and a
/// signalling NaN.
std::vector<std::uint32_t> SpecialPatterns(DType dtype, Range range = Range::kAll);

/// Fills a tensor with difficult items: values of all exponents, or of some binades around 1; runs
/// of similar values; all-zero blocks; a few of SpecialPatterns(). kNear has no values above 2^9.
void FillWithSpecials(FloatTensor& tensor, std::mt19937_64& random, Range range = Range::kAll);

/// A number of threads and a kind of stores, which must not change a byte of the result.
struct ExecutionVariant {
  int threads;
  Stores stores;
};
inline constexpr ExecutionVariant kExecutionVariants[] = {{1, Stores::kCached},
                                                          {3, Stores::kNontemporal}};

/// Returns true if the spec can quantize the shape: packed lines have an even length, and rows are
/// a multiple of 16 for the transform.
bool Fits(const QuantSpec& spec, const Shape& shape);

/// Returns the spec in every direction, compact and swizzled.
std::vector<QuantSpec> DirectionsOf(const QuantSpec& spec);

}  // namespace narrowfloat::conformance
