// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "narrowfloat/kernels/gemm_finish.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/ops/gemm_expansion.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Which product of two matrices, by the buffers that it reads: TransformerEngine's three GEMMs of
/// a linear layer. T stands for an operand that is transposed, as BLAS says it of w, x and dy.
///   kTN  fprop  x (M, K) rowwise, w (N, K) rowwise:        x times w transposed, (M, N)
///   kNN  dgrad  dy (M, N) rowwise, w (N, K) columnwise:    dy times w, (M, K)
///   kNT  wgrad  dy (M, N) columnwise, x (M, K) columnwise: dy transposed times x, (N, K)
enum class GemmLayout : std::uint8_t { kTN, kNN, kNT };

/// The layout of that name, "TN", "NN" or "NT". Errors: InvalidArgument.
GemmLayout FindGemmLayout(std::string_view name);

/// What happens to what `out` holds.
enum class GemmOutput : std::uint8_t { kOverwrite, kAccumulate };

/// How products are computed.
///   kReproducible  the same bytes on every instruction set and at every thread count
///   kFast          within the bound of docs/exactness.md: where the machine multiplies bfloat16
///   and
///                  the operands expand to it without loss, by oneDNN; else as kReproducible
enum class GemmMode : std::uint8_t { kReproducible, kFast };

/// The mode of that name, "reproducible" or "fast". Errors: InvalidArgument.
GemmMode FindGemmMode(std::string_view name);
std::string_view GemmModeName(GemmMode mode);

/// The mode of products that do not name one: NF_PRODUCT, else kReproducible. Errors:
/// InvalidArgument if NF_PRODUCT names no mode.
GemmMode DefaultGemmMode();

struct GemmOptions {
  GemmLayout layout = GemmLayout::kTN;
  GemmOutput output = GemmOutput::kOverwrite;
  std::optional<ConstTensorView> bias{};  // float, one item a column of the result
  std::optional<GemmMode> mode{};         // none: DefaultGemmMode()
  // GELU of the sum with its bias, or that times GELU's derivative at gelu_in. gelu_in has the
  // result's shape and type; kGelu stores there what it is applied to, if there is one. Terms are
  // then added in fp32, and the result is rounded once.
  SumFunction function = SumFunction::kNone;
  std::optional<TensorView> gelu_in{};
};

/// Shape of the product of `a` and `b`, whose leading dimensions are flattened.
/// Errors: InvalidArgument if their schemes are of different families, or they differ in the
/// dimension that is summed over. `verb` begins the message.
Shape QgemmShape(const ConstQuantizedView& a, const ConstQuantizedView& b, GemmLayout layout,
                 std::string_view verb = "qgemm");

/// Plans the lossless expansion of the operands of a product to bfloat16; nothing where there is
/// none. Errors: InvalidArgument as Qgemm.
std::optional<ProductExpansion> PlanQgemmExpansion(const ConstQuantizedView& a,
                                                   const ConstQuantizedView& b, GemmLayout layout);

/// Writes the product of two quantized matrices to `out`, of any float type.
/// Sums: the codes of a slab, the items that share a scale, are multiplied and added in fp32, in
/// order; slabs are scaled and added in order; then the result is rounded. The bytes depend on
/// neither threads nor instruction sets. docs/numerics.md has the rules of each family, of the
/// bias and of accumulating. In kFast the order is another one.
/// Shapes: out is QgemmShape(a, b, layout); its rows may lie anywhere. A sum over nothing is 0.
/// Errors: InvalidArgument as QgemmShape; if a buffer that the layout reads is missing or differs
/// from the plan; if out or bias has another shape or is no float tensor; if gelu_in is missing or
/// without a function, or is not as out is; if out, or gelu_in that is written, overlaps what is
/// read or the other one; Unsupported if oneDNN is needed and missing. Nothing is written then.
/// Source: TransformerEngine CurrentScalingQuantizerRef.qgemm, CuBLASRefBlockwiseGemm and
/// NVFP4QuantizerRef.qgemm.
void Qgemm(const ConstQuantizedView& a, const ConstQuantizedView& b, const TensorView& out,
           const GemmOptions& options = {}, const Execution& execution = {});

struct GroupedGemmOptions {
  GemmLayout layout = GemmLayout::kTN;
  GemmOutput output = GemmOutput::kOverwrite;
  std::span<const ConstTensorView> biases{};  // one for each group, or none
  std::optional<GemmMode> mode{};             // none: DefaultGemmMode()
};

/// Writes the product of a[g] and b[g] to outs[g], for every group g: the bytes that Qgemm writes
/// for each alone. The groups share the threads, so that many small ones run as fast as a large
/// one. Shapes: outs[g] is QgemmShape(a[g], b[g], layout); groups may differ in every dimension and
/// in scheme, and may be empty. Errors: InvalidArgument as Qgemm, naming the group; if the counts
/// differ; if an output overlaps another one or what any group reads. Nothing is written then.
void GroupedQgemm(std::span<const ConstQuantizedView> a, std::span<const ConstQuantizedView> b,
                  std::span<const TensorView> outs, const GroupedGemmOptions& options = {},
                  const Execution& execution = {});

}  // namespace narrowfloat
