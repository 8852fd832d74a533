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
  kUnaligned,     // one byte off
  kPaddedRows,    // rows further apart than they are long, by an odd number of bytes
  kReversedRows,  // negative strides
  kPaddedOuter,   // outermost dimension further apart: the row distance is not uniform for rank 3
  kInsideLine,    // 16 bytes past a cache line, where NumPy's large arrays begin
};
/// The placements of small tensors; kInsideLine matters to large ones.
inline constexpr Placement kPlacements[] = {Placement::kContiguous, Placement::kUnaligned,
                                            Placement::kPaddedRows, Placement::kReversedRows,
                                            Placement::kPaddedOuter};
std::string PlacementName(Placement placement);
/// Returns how many bytes past a cache line a tensor begins.
std::size_t MisalignmentOf(Placement placement);

/// Memory that begins on a cache line, as large tensors' does: kernels write what is aligned in
/// another way, so that chance must not decide it.
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

/// A float tensor that owns its memory, between guard bytes.
class FloatTensor {
 public:
  FloatTensor(DType dtype, Shape shape, Placement placement = Placement::kContiguous);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return offsets_.size() * cols_; }
  TensorView View();
  ConstTensorView ConstView() const;

  /// Returns the item `index` in row-major order of the shape, wherever it lies.
  std::uint32_t Bits(std::size_t index) const;
  void SetBits(std::size_t index, std::uint32_t bits);
  double Value(std::size_t index) const;
  /// Items in row-major order.
  std::vector<std::uint32_t> AllBits() const;
  /// Copies the items of `other`, whatever the placements.
  void Assign(const FloatTensor& other);
  /// Returns true if the bytes between and around the rows are those that the constructor wrote.
  bool GuardsAreWhole() const;

 private:
  const std::byte* At(std::size_t index) const;

  DType dtype_;
  Shape shape_;
  std::size_t cols_;
  std::vector<std::ptrdiff_t> strides_;
  std::vector<std::size_t> offsets_;  // of each row, from the start of memory_
  LineBytes memory_;
};

/// The planned buffers of a quantized tensor, each between guard bytes and filled with a pattern,
/// so that a byte which a verb forgets to write shows.
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

/// Returns the first difference of two quantized tensors of one spec and shape: which buffer, which
/// byte, what was expected and got; empty if they are equal and no guard was written to.
std::string Difference(const QuantizedBuffers& expected, const QuantizedBuffers& got);
/// Returns the first difference of two float tensors, bit for bit.
std::string Difference(const FloatTensor& expected, const FloatTensor& got);

/// Returns the seed of this run's random tensors: NF_TEST_SEED if that is set, else another one
/// each time. Every failure prints it.
std::uint64_t RunSeed();

/// Ranges of FillWithSpecials. Kernels treat finite numbers faster than NaN and infinities, near
/// numbers faster still.
enum class Range { kAll, kNumbers, kNear };
inline constexpr Range kRanges[] = {Range::kAll, Range::kNumbers, Range::kNear};

/// Returns the patterns of zero, of the smallest and the largest subnormal, and of the largest
/// finite number, most with both signs; with kAll also of infinities and of a quiet and a
/// signalling NaN.
std::vector<std::uint32_t> SpecialPatterns(DType dtype, Range range = Range::kAll);

/// Fills a tensor with what breaks kernels: values over the whole exponent range or some binades
/// around 1, runs near each other, all-zero blocks, and here and there -0, subnormals, the largest
/// values, NaN and infinities.
void FillWithSpecials(FloatTensor& tensor, std::mt19937_64& random, Range range = Range::kAll);

/// Threads and stores that a backend is tried with: none of them changes a byte.
struct ExecutionVariant {
  int threads;
  Stores stores;
};
inline constexpr ExecutionVariant kExecutionVariants[] = {{1, Stores::kCached},
                                                          {3, Stores::kNontemporal}};

/// Returns true if packed codes fill their bytes, and the transform's rows its groups.
bool Fits(const QuantSpec& spec, const Shape& shape);

/// Returns the spec in every direction, compact and swizzled.
std::vector<QuantSpec> DirectionsOf(const QuantSpec& spec);

}  // namespace narrowfloat::conformance
