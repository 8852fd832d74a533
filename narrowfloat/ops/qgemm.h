// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/gemm_expansion.h"
#include "narrowfloat/tensor/sum_function.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Kind of a product of two matrices, by the buffers that it reads: TransformerEngine's three GEMMs
/// of a linear layer. T marks a transposed operand, in BLAS's order of operands.
///   kTN  fprop  x (M, K) rowwise, w (N, K) rowwise:        x times w transposed, (M, N)
///   kNN  dgrad  dy (M, N) rowwise, w (N, K) columnwise:    dy times w, (M, K)
///   kNT  wgrad  dy (M, N) columnwise, x (M, K) columnwise: dy transposed times x, (N, K)
enum class GemmLayout : std::uint8_t { kTN, kNN, kNT };

/// Returns the layout of that name, "TN", "NN" or "NT". Errors: InvalidArgument.
GemmLayout FindGemmLayout(std::string_view name);

/// Use of the values in `out`: overwrites them, or adds to them.
enum class GemmOutput : std::uint8_t { kOverwrite, kAccumulate };

/// Ways of computing products.
///   kReproducible  the same bytes on every instruction set and at every thread count
///   kFast          within the bound of docs/exactness.md: by oneDNN if the machine multiplies
///                  bfloat16 and the operands expand to it without loss; else as kReproducible
enum class GemmMode : std::uint8_t { kReproducible, kFast };

/// Returns the mode of that name, "reproducible" or "fast". Errors: InvalidArgument.
GemmMode FindGemmMode(std::string_view name);
std::string_view GemmModeName(GemmMode mode);

/// Returns the mode of products without a mode: NF_PRODUCT, else kReproducible. Errors:
/// InvalidArgument if NF_PRODUCT is not the name of a mode.
GemmMode DefaultGemmMode();

struct GemmOptions {
  GemmLayout layout = GemmLayout::kTN;
  GemmOutput output = GemmOutput::kOverwrite;
  std::optional<ConstTensorView> bias{};  // float, one item per column of the result
  std::optional<GemmMode> mode{};         // absent: DefaultGemmMode()
  // GELU of the sum with its bias, or that sum times GELU's derivative at gelu_in. gelu_in has the
  // result's shape and type; kGelu stores its argument there, if gelu_in is given. The terms are
  // then added in fp32, and the result is rounded once.
  SumFunction function = SumFunction::kNone;
  std::optional<TensorView> gelu_in{};
};

/// Returns true if tensors of these schemes can be multiplied: equal element widths, slab lengths
/// and scale types.
bool AreOfOneFamily(const SchemeInfo& a, const SchemeInfo& b);

/// Returns the shape of the product of `a` and `b`, with leading dimensions flattened.
/// Errors: InvalidArgument if their schemes are of different families, the lengths of the summed
/// dimension differ, or the operands have different Hadamard transforms in the directions that the
/// layout reads (only columnwise values have one). `verb` begins the message.
Shape QgemmShape(const ConstQuantizedView& a, const ConstQuantizedView& b, GemmLayout layout,
                 std::string_view verb = "qgemm");

/// Plans the lossless expansion of a product's operands to bfloat16; returns nullopt if it does not
/// exist. Errors: InvalidArgument as Qgemm, or if the operands are not in CPU memory.
std::optional<ProductExpansion> PlanQgemmExpansion(const ConstQuantizedView& a,
                                                   const ConstQuantizedView& b, GemmLayout layout);

/// Writes the product of two quantized matrices to `out`, of any float type.
/// Sums: multiplies and adds the codes of a slab (the items that share a scale) in fp32, in
/// order; scales and adds the slabs in order; then rounds the result. The bytes depend on
/// neither threads nor instruction sets. docs/numerics.md has the rules of each family, of the
/// bias and of accumulation. kFast uses another order.
/// Shapes: out is QgemmShape(a, b, layout); its rows may have any stride. An empty sum is 0.
/// Errors: InvalidArgument as QgemmShape; if a buffer that the layout reads is missing or differs
/// from the plan; if out or bias has another shape or is not a float tensor; if gelu_in is missing
/// or given without a function, or differs from out in shape or type; if an output overlaps what is
/// read or the other output; Unsupported if oneDNN is needed and missing. Nothing is written
/// then. DeviceError if oneDNN fails; the result is then partly written.
/// Source: TransformerEngine CurrentScalingQuantizerRef.qgemm, CuBLASRefBlockwiseGemm and
/// NVFP4QuantizerRef.qgemm.
void Qgemm(const ConstQuantizedView& a, const ConstQuantizedView& b, const TensorView& out,
           const GemmOptions& options = {}, const Execution& execution = {});

struct GroupedGemmOptions {
  GemmLayout layout = GemmLayout::kTN;
  GemmOutput output = GemmOutput::kOverwrite;
  std::span<const ConstTensorView> biases{};  // one per group, or empty
  std::optional<GemmMode> mode{};             // absent: DefaultGemmMode()
};

/// Writes the product of a[g] and b[g] to outs[g], for every group g, with the same bytes as Qgemm.
/// The groups share the threads, so that many small ones run as fast as a large one.
/// Shapes: outs[g] is QgemmShape(a[g], b[g], layout); groups may differ in every dimension and
/// in scheme, and may be empty. Errors: as Qgemm, InvalidArgument naming the group; InvalidArgument
/// if the counts differ, or an output overlaps another one or what is read for any group; nothing
/// is written then.
void GroupedQgemm(std::span<const ConstQuantizedView> a, std::span<const ConstQuantizedView> b,
                  std::span<const TensorView> outs, const GroupedGemmOptions& options = {},
                  const Execution& execution = {});

}  // namespace narrowfloat
