// SPDX-License-Identifier: Apache-2.0
// te_dbias_quantize_ffi: codes and scales of a tensor, and the sums of its columns.
#include <fmt/format.h>

#include <cstring>
#include <span>
#include <utility>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "quantize";

using Result = ffi::Result<ffi::AnyBuffer>;

struct Operands {
  ffi::AnyBuffer input, scale, amax, rng_state, post_rht_amax, rht_matrix;
};
struct Results {
  Result rowwise_data, columnwise_data, rowwise_scale_inv, columnwise_scale_inv, amax, dbias,
      workspace;
};

/// Returns the signs of a matrix diag(signs) H / 4, whose first column is the signs / 4.
/// Errors: InvalidArgument if it is not such a matrix.
std::uint64_t SignMaskOf(const ffi::AnyBuffer& matrix) {
  constexpr BufferName kName{kVerb, "rht_matrix"};
  CheckDType(kName, matrix, ffi::BF16);
  CheckCount(kName, matrix, kHadamardSize * kHadamardSize);
  const auto* items = static_cast<const std::uint16_t*>(matrix.untyped_data());
  std::uint32_t mask = 0;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    if (Decode<BFloat16>(items[k * kHadamardSize]) < 0.0f) mask |= 1u << k;
  }
  constexpr auto kFactor = static_cast<float>(kHadamardScale);
  for (std::size_t i = 0; i < kHadamardSize * kHadamardSize; ++i) {
    const bool negates = HadamardNegates(i / kHadamardSize, i % kHadamardSize, mask);
    if (Decode<BFloat16>(items[i]) == (negates ? -kFactor : kFactor)) continue;
    throw InvalidArgument(fmt::format(
        "{}: rht_matrix must be a diagonal of signs times Sylvester's matrix of {} over {}, got "
        "{} at row {}, column {}",
        kVerb, kHadamardSize, 1.0f / kFactor, Decode<BFloat16>(items[i]), i / kHadamardSize,
        i % kHadamardSize));
  }
  return mask;
}

void ReadRandomState(const ffi::AnyBuffer& state, QuantSpec& spec) {
  constexpr BufferName kName{kVerb, "sr_rng_state"};
  CheckDType(kName, state, ffi::U32);
  CheckCount(kName, state, 4);
  std::uint64_t words[2];
  std::memcpy(words, state.untyped_data(), sizeof words);
  spec.seed = words[0];
  spec.offset = words[1];
}

/// Operands beside the input.
void ReadOperands(const Operands& in, QuantSpec& spec) {
  switch (spec.scheme->layout.amax) {
    case AmaxBuffers::kNone:
      break;
    case AmaxBuffers::kOne:
      spec.scale = *Floats({kVerb, "scale"}, in.scale, 1);
      break;
    case AmaxBuffers::kPerDirection:
      spec.amax = *Floats({kVerb, "amax"}, in.amax, 1);
      break;
  }
  if (spec.rht && spec.columnwise) {
    spec.rht_sign_mask = SignMaskOf(in.rht_matrix);
    spec.amax_columnwise = *Floats({kVerb, "post_rht_amax"}, in.post_rht_amax, 1);
  }
  if (spec.stochastic_rounding) ReadRandomState(in.rng_state, spec);
}

/// Scalars that the core expects in buffers and XLA passes as operands, or not at all.
struct ScalarResults {
  float scale = 0, amax_rowwise = 0, amax_columnwise = 0, scale_inv = 0;
};

/// Binds the planned buffers to results. Binds a scale of the whole tensor to `numbers`, since
/// an empty tensor's result has no room for it.
QuantizedView BindResults(const QuantSpec& spec, const Shape& shape, Results& out,
                          ScalarResults& numbers) {
  const SchemeInfo& scheme = *spec.scheme;
  const bool one_scale = scheme.layout.lines_per_scale == 0;
  const auto bytes = [](float& number) { return reinterpret_cast<std::byte*>(&number); };
  const std::size_t elements = FlattenShape(shape).Size();
  const auto scales = [&](const char* name, Result& result, const BufferPlan& buffer) {
    if (one_scale) {
      CheckScaleDType({kVerb, name}, *result, scheme);
      return bytes(numbers.scale_inv);
    }
    return Scales({kVerb, name}, *result, scheme, FlattenShape(buffer.shape).Size());
  };
  return BindBuffers<QuantizedView>(spec, shape, [&](const BufferPlan& buffer) {
    switch (buffer.role) {
      case Role::kRowwiseData:
        return Codes({kVerb, "rowwise data"}, *out.rowwise_data, scheme, elements);
      case Role::kColumnwiseData:
        return Codes({kVerb, "colwise data"}, *out.columnwise_data, scheme, elements);
      case Role::kRowwiseScaleInv:
        return scales("rowwise scale_inv", out.rowwise_scale_inv, buffer);
      case Role::kColumnwiseScaleInv:
        return scales("colwise scale_inv", out.columnwise_scale_inv, buffer);
      case Role::kScale:
        return bytes(numbers.scale);
      case Role::kAmaxRowwise:
        return bytes(numbers.amax_rowwise);
      case Role::kAmaxColumnwise:
        break;
    }
    return bytes(numbers.amax_columnwise);
  });
}

/// Writes the one scale to both results, whichever direction is present.
void StoreTensorScale(const SchemeInfo& scheme, const ScalarResults& numbers, Results& out) {
  if (scheme.layout.lines_per_scale != 0) return;
  for (Result* result : {&out.rowwise_scale_inv, &out.columnwise_scale_inv}) {
    ffi::AnyBuffer& buffer = **result;
    if (buffer.element_type() != ffi::F32 || buffer.element_count() == 0) continue;
    std::memcpy(buffer.untyped_data(), &numbers.scale_inv, sizeof numbers.scale_inv);
  }
}

/// Returns the larger of the amax so far and a measured one. The operand may alias the result.
void StoreAmax(const SchemeInfo& scheme, const ScalarResults& numbers, const Operands& in,
               Results& out) {
  const auto* before = Floats({kVerb, "amax"}, in.amax, in.amax.element_count());
  float* after = MutableFloats({kVerb, "updated amax"}, *out.amax, in.amax.element_count());
  if (before != after) std::memmove(after, before, BytesOf(in.amax));
  const bool measured = scheme.layout.amax == AmaxBuffers::kOne && in.amax.element_count() > 0;
  if (measured && numbers.amax_rowwise > *after) *after = numbers.amax_rowwise;
}

void ZeroAbsent(const QuantSpec& spec, bool is_dbias, Results& out) {
  if (!spec.rowwise) {
    ZeroFrom(*out.rowwise_data);
    ZeroFrom(*out.rowwise_scale_inv);
  }
  if (!spec.columnwise) {
    ZeroFrom(*out.columnwise_data);
    ZeroFrom(*out.columnwise_scale_inv);
  }
  if (!is_dbias) {
    ZeroFrom(*out.dbias);
    ZeroFrom(*out.workspace);
  }
}

std::span<float> WorkspaceOf(Result& workspace) {
  ffi::AnyBuffer& buffer = *workspace;
  CheckDType({kVerb, "workspace"}, buffer, ffi::F32);
  return {static_cast<float*>(buffer.untyped_data()), buffer.element_count()};
}

ffi::Error DBiasQuantizeFFI(ffi::ThreadPool threads, ffi::AnyBuffer input, ffi::AnyBuffer scale,
                            ffi::AnyBuffer amax, ffi::AnyBuffer sr_rng_state,
                            ffi::AnyBuffer post_rht_amax, ffi::AnyBuffer rht_matrix,
                            Result rowwise_data, Result columnwise_data, Result rowwise_scale_inv,
                            Result columnwise_scale_inv, Result updated_amax, Result dbias,
                            Result workspace, ScalingMode scaling_mode, QuantizeLayout q_layout,
                            bool is_dbias, std::int64_t flatten_axis, bool stochastic_rounding,
                            bool use_rht) {
  return RunOn(threads, [&](const Execution& execution) {
    const Operands in{input, scale, amax, sr_rng_state, post_rht_amax, rht_matrix};
    Results out{rowwise_data, columnwise_data, rowwise_scale_inv, columnwise_scale_inv,
                updated_amax, dbias,           workspace};
    const bool rowwise = q_layout != QuantizeLayout::COLWISE;
    const std::string_view element =
        ElementOf({kVerb, "the output"}, rowwise ? *rowwise_data : *columnwise_data);
    QuantSpec spec =
        MakeSpec(kVerb, {scaling_mode, q_layout, stochastic_rounding, use_rht}, element);
    ReadOperands(in, spec);
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(input), flatten_axis);
    const ConstTensorView view = MatrixView({kVerb, "the input"}, input, matrix);
    ScalarResults numbers;
    const QuantizedView quantized = BindResults(spec, view.shape, out, numbers);
    AdviseHugePages(*rowwise_data);
    AdviseHugePages(*columnwise_data);
    ZeroAbsent(spec, is_dbias, out);
    if (is_dbias) {
      CheckCount({kVerb, "dbias"}, *dbias, matrix.cols);
      TensorView sums = MutableMatrixView({kVerb, "dbias"}, *dbias, {1, matrix.cols});
      sums.shape.erase(sums.shape.begin());
      QuantizeDbias(view, quantized, sums, WorkspaceOf(out.workspace), execution);
    } else {
      Quantize(view, quantized, execution);
    }
    StoreTensorScale(*spec.scheme, numbers, out);
    StoreAmax(*spec.scheme, numbers, in, out);
  });
}

/// Binds operands, results and attributes, after the platform's own context.
auto Bind() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .Arg<ffi::AnyBuffer>()  // input
      .Arg<ffi::AnyBuffer>()  // scale
      .Arg<ffi::AnyBuffer>()  // amax
      .Arg<ffi::AnyBuffer>()  // sr_rng_state
      .Arg<ffi::AnyBuffer>()  // post_rht_amax
      .Arg<ffi::AnyBuffer>()  // rht_matrix
      .Ret<ffi::AnyBuffer>()  // rowwise data
      .Ret<ffi::AnyBuffer>()  // colwise data
      .Ret<ffi::AnyBuffer>()  // rowwise scale_inv
      .Ret<ffi::AnyBuffer>()  // colwise scale_inv
      .Ret<ffi::AnyBuffer>()  // updated amax
      .Ret<ffi::AnyBuffer>()  // dbias
      .Ret<ffi::AnyBuffer>()  // workspace
      .Attr<ScalingMode>("scaling_mode")
      .Attr<QuantizeLayout>("q_layout")
      .Attr<bool>("is_dbias")
      .Attr<std::int64_t>("flatten_axis")
      .Attr<bool>("stochastic_rounding")
      .Attr<bool>("use_rht");
}

}  // namespace

NF_EXPORT_HANDLER(te_dbias_quantize_ffi, DBiasQuantizeFFI, Bind());

}  // namespace narrowfloat::xla_ffi
