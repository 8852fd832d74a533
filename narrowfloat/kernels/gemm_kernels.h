// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of matrix products. Each instruction set exports one GemmKernels; the driver in
// ops/cpu/gemm_driver.h is plain C++ and calls them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat {

/// Rule that adds the dot product of one slab's codes, an fp32 number, to the sum over the slabs; a
/// and b are the slab's scales of the two lines.
enum class SlabSum : std::uint8_t {
  kBinary64,      // sum + dot * (a * b) in binary64, rounded to fp32 after the last slab
  kFusedLast,     // fma(dot * a, b, sum) in fp32
  kFusedFirst,    // fma(dot * b, a, sum) in fp32
  kFusedProduct,  // fma(dot, a * b, sum) in fp32
};
inline constexpr std::size_t kSlabSumCount = 4;

/// Time at which a sum is rounded to the result's type: before a term is added and once more after
/// it, or only after it.
enum class TermRounding : std::uint8_t { kBeforeTerm, kAfterTerm };

/// The arithmetic of a product of two schemes. Depends on schemes and types alone, not on threads,
/// tiles or instruction sets.
struct GemmRule {
  SlabSum sum = SlabSum::kBinary64;
  TermRounding bias = TermRounding::kBeforeTerm;
  TermRounding accumulate = TermRounding::kBeforeTerm;
};

/// An operand's codes in their stored form.
struct OperandCodes {
  const std::byte* data = nullptr;
  std::size_t stride = 0;              // bytes from a stored row to the next
  bool positions_are_adjacent = true;  // a stored row is a line; else one position of all lines
};

/// Arguments of packing some lines of an operand: at most GemmBody::rows (a) or cols (b). The first
/// position is a multiple of GemmBody::unit.
struct PackArgs {
  OperandCodes codes;
  LineRange range;
  std::byte* out;
};

/// One micro-tile: every line of panel `a` times every line of panel `b`, over `length` positions.
/// Scales are stored [slab][line of the panel], `sums` [line of a][line of b].
struct MicroTileArgs {
  const std::byte *a, *b;
  const double *a_scales, *b_scales;
  std::size_t length, slab;
  std::size_t rows;  // lines of panel a with data; sums of other lines may stay unwritten
  void* sums;        // double for add_slabs of SlabSum::kBinary64, else float
};

using PackFn = void (*)(const PackArgs& args) noexcept;
using MicroTileFn = void (*)(const MicroTileArgs& args) noexcept;

/// Packing functions of one element format for the two sides of a body.
struct PanelPackers {
  PackFn a = nullptr, b = nullptr;
};

/// Geometry of a pair of panels and the micro-kernels that write and read them.
/// A panel stores its units of positions one after another; positions past a line's end are zero.
struct GemmBody {
  std::size_t rows = 0, cols = 0;                  // lines of a panel of a, of b
  std::size_t unit = 1;                            // positions that are packed together
  std::size_t a_unit_bytes = 0, b_unit_bytes = 0;  // of a whole panel
  std::array<PanelPackers, ElementFormats::kSize> pack{};
  std::array<MicroTileFn, kSlabSumCount> add_slabs{};  // adds scaled dot products of whole slabs
  MicroTileFn add_products = nullptr;  // adds unscaled products to fp32 sums; reads no scales
};

/// Type and meaning of a micro-tile's sums after the last slab.
enum class SumType : std::uint8_t {
  kBinary64,    // doubles
  kFloat,       // floats
  kUnscaledDot  // floats, the dot products of the only slab, before scaling
};

struct FinishArgs;  // defined in gemm_finish.h, which few files include
using FinishFn = void (*)(const FinishArgs& args) noexcept;

/// The micro-kernels of one instruction set.
struct GemmKernels {
  GemmBody floats;   // codes become fp32: every format and rule
  GemmBody nibbles;  // E2M1 codes become integers: slabs of nibbles.unit items and kBinary64 only
  ByType<FinishFn> finish{};
};

}  // namespace narrowfloat
