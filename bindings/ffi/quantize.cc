// SPDX-License-Identifier: Apache-2.0
// te_dbias_quantize_ffi: codes and scales of a tensor, and the sums of its columns.
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
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

/// Returns the sign mask of a matrix diag(signs) H / 4; its first column is the signs / 4. A matrix
/// without items means TransformerEngine's signs. Reads other matrices on the host, so that a call
/// on CUDA waits for its stream.
/// Errors: InvalidArgument for any other matrix.
std::uint64_t SignMaskOf(const CallExecution& execution, const ffi::AnyBuffer& matrix) {
  constexpr BufferName kName{kVerb, "rht_matrix"};
  CheckDType(kName, matrix, ffi::BF16);
  if (matrix.element_count() == 0) return kHadamardSignMask;
  CheckCount(kName, matrix, kHadamardSize * kHadamardSize);
  std::uint16_t items[kHadamardSize * kHadamardSize];
  CopyToHost(execution, items, matrix.untyped_data(), sizeof items);
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

/// Returns the address of the generator's seed and offset.
const void* RandomState(const ffi::AnyBuffer& state) {
  constexpr BufferName kName{kVerb, "sr_rng_state"};
  CheckDType(kName, state, ffi::U32);
  CheckCount(kName, state, 4);
  return state.untyped_data();
}

/// Addresses of the operands that the spec needs, besides the input; null: not needed.
struct UsedOperands {
  const float *scale = nullptr, *amax = nullptr, *post_rht_amax = nullptr;
  const void* random = nullptr;
};
/// Returns the used operands. Errors: InvalidArgument if an operand has another dtype or size.
UsedOperands CheckOperands(const Operands& in, const QuantSpec& spec) {
  UsedOperands used;
  const AmaxBuffers amax = spec.scheme->layout.amax;
  if (amax == AmaxBuffers::kOne) used.scale = Floats({kVerb, "scale"}, in.scale, 1);
  if (amax == AmaxBuffers::kPerDirection) used.amax = Floats({kVerb, "amax"}, in.amax, 1);
  if (spec.rht && spec.columnwise)
    used.post_rht_amax = Floats({kVerb, "post_rht_amax"}, in.post_rht_amax, 1);
  if (spec.stochastic_rounding) used.random = RandomState(in.rng_state);
  return used;
}

/// Reads the operands' values, and stores them in the spec.
void ReadOnCpu(const Operands& in, QuantSpec& spec) {
  const auto number = [](const float* at) {
    return at != nullptr ? std::optional(*at) : std::nullopt;
  };
  const UsedOperands used = CheckOperands(in, spec);
  spec.scale = number(used.scale);
  spec.amax = number(used.amax);
  spec.amax_columnwise = number(used.post_rht_amax);
  if (used.random == nullptr) return;
  std::uint64_t words[2];
  std::memcpy(words, used.random, sizeof words);
  spec.seed = words[0];
  spec.offset = words[1];
}

/// Binds the operands' addresses to the execution, from which the device reads them.
void BindOnCuda(const Operands& in, const QuantSpec& spec, CallExecution& execution) {
  const UsedOperands used = CheckOperands(in, spec);
  execution.scale = used.scale;
  execution.amax = used.amax;
  execution.amax_columnwise = used.post_rht_amax != nullptr ? used.post_rht_amax : used.amax;
  execution.random = static_cast<const std::uint64_t*>(used.random);
}

/// Scalars that the core stores in buffers and XLA passes as operands, or does not pass.
constexpr std::size_t kScale = 0, kAmaxRowwise = 1, kAmaxColumnwise = 2, kScaleInv = 3,
                      kScalars = 4;

/// Returns memory for a scale of the whole tensor: in a result, or else in `scalars`.
float* TensorScaleOf(Results& out, const ScratchFloats& scalars) {
  for (Result* result : {&out.rowwise_scale_inv, &out.columnwise_scale_inv}) {
    ffi::AnyBuffer& buffer = **result;
    if (buffer.element_type() == ffi::F32 && buffer.element_count() > 0)
      return static_cast<float*>(buffer.untyped_data());
  }
  return scalars.data() + kScaleInv;
}

/// Binds the planned buffers to results, and buffers that are not results to `scalars`.
QuantizedView BindResults(const QuantSpec& spec, const Shape& shape, Results& out,
                          const ScratchFloats& scalars, Device device) {
  const SchemeInfo& scheme = *spec.scheme;
  const bool one_scale = scheme.HasOneScale();
  const auto bytes = [](float* number) { return reinterpret_cast<std::byte*>(number); };
  const std::size_t elements = FlattenShape(shape).Size();
  const auto scales = [&](const char* name, Result& result, const BufferPlan& buffer) {
    if (one_scale) {
      CheckScaleDType({kVerb, name}, *result, scheme);
      return bytes(TensorScaleOf(out, scalars));
    }
    return Scales({kVerb, name}, *result, scheme, FlattenShape(buffer.shape).Size());
  };
  const auto bytes_of = [&](const BufferPlan& buffer) {
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
        return bytes(scalars.data() + kScale);
      case Role::kAmaxRowwise:
        return bytes(scalars.data() + kAmaxRowwise);
      case Role::kAmaxColumnwise:
        break;
    }
    return bytes(scalars.data() + kAmaxColumnwise);
  };
  return BindBuffers<QuantizedView>(spec, shape, bytes_of, device);
}

/// Writes the tensor's one scale to both results, even if only one direction is present.
void StoreTensorScale(const CallExecution& execution, const SchemeInfo& scheme,
                      const ScratchFloats& scalars, Results& out) {
  if (!scheme.HasOneScale()) return;
  const float* scale_inv = TensorScaleOf(out, scalars);
  for (Result* result : {&out.rowwise_scale_inv, &out.columnwise_scale_inv}) {
    ffi::AnyBuffer& buffer = **result;
    if (buffer.element_type() != ffi::F32 || buffer.element_count() == 0) continue;
    CopyBytes(execution, buffer.untyped_data(), scale_inv, sizeof *scale_inv);
  }
}

/// Stores the larger of the operand's amax and the measured one in the result. The operand may
/// alias the result.
void StoreAmax(const CallExecution& execution, const SchemeInfo& scheme,
               const ScratchFloats& scalars, const Operands& in, Results& out) {
  const auto* before = Floats({kVerb, "amax"}, in.amax, in.amax.element_count());
  float* after = MutableFloats({kVerb, "updated amax"}, *out.amax, in.amax.element_count());
  CopyBytes(execution, after, before, BytesOf(in.amax));
  const bool measured = scheme.layout.amax == AmaxBuffers::kOne && in.amax.element_count() > 0;
  if (measured) Run(execution, RaiseAmaxStep{after, scalars.data() + kAmaxRowwise});
}

void ZeroAbsent(const CallExecution& execution, const QuantSpec& spec, bool is_dbias,
                Results& out) {
  if (!spec.rowwise) {
    ZeroFrom(execution, *out.rowwise_data);
    ZeroFrom(execution, *out.rowwise_scale_inv);
  }
  if (!spec.columnwise) {
    ZeroFrom(execution, *out.columnwise_data);
    ZeroFrom(execution, *out.columnwise_scale_inv);
  }
  if (!is_dbias) {
    ZeroFrom(execution, *out.dbias);
    ZeroFrom(execution, *out.workspace);
  }
}

std::span<float> WorkspaceOf(Result& workspace) {
  ffi::AnyBuffer& buffer = *workspace;
  CheckDType({kVerb, "workspace"}, buffer, ffi::F32);
  return {static_cast<float*>(buffer.untyped_data()), buffer.element_count()};
}

ffi::Error DBiasQuantizeFFI(ffi::AnyBuffer input, ffi::AnyBuffer scale, ffi::AnyBuffer amax,
                            ffi::AnyBuffer sr_rng_state, ffi::AnyBuffer post_rht_amax,
                            ffi::AnyBuffer rht_matrix, Result rowwise_data, Result columnwise_data,
                            Result rowwise_scale_inv, Result columnwise_scale_inv,
                            Result updated_amax, Result dbias, Result workspace,
                            ScalingMode scaling_mode, QuantizeLayout q_layout, bool is_dbias,
                            std::int64_t flatten_axis, bool stochastic_rounding, bool use_rht,
                            Platform platform) {
  return RunOn(platform, [&](CallExecution execution) {
    const Device device = execution.device;
    const Operands in{input, scale, amax, sr_rng_state, post_rht_amax, rht_matrix};
    Results out{rowwise_data, columnwise_data, rowwise_scale_inv, columnwise_scale_inv,
                updated_amax, dbias,           workspace};
    const bool rowwise = q_layout != QuantizeLayout::COLWISE;
    const std::string_view element =
        ElementOf({kVerb, "the output"}, rowwise ? *rowwise_data : *columnwise_data);
    QuantSpec spec =
        MakeSpec(kVerb, {scaling_mode, q_layout, stochastic_rounding, use_rht}, element);
    if (spec.rht && spec.columnwise) spec.rht_sign_mask = SignMaskOf(execution, rht_matrix);
    if (execution.IsOnCpu()) {
      ReadOnCpu(in, spec);
    } else {
      BindOnCuda(in, spec, execution);
    }
    const MatrixShape matrix = SplitShape(kVerb, ShapeOf(input), flatten_axis);
    const ConstTensorView view = MatrixView({kVerb, "the input"}, input, matrix, device);
    const bool has_scalars = spec.scheme->layout.amax != AmaxBuffers::kNone;
    const ScratchFloats scalars(execution, has_scalars ? kScalars : 0);
    const QuantizedView quantized = BindResults(spec, view.shape, out, scalars, device);
    AdviseHugePages(*rowwise_data, device);
    AdviseHugePages(*columnwise_data, device);
    ZeroAbsent(execution, spec, is_dbias, out);
    if (is_dbias) {
      TensorView sums = MutableMatrixView({kVerb, "dbias"}, *dbias, {1, matrix.cols}, device);
      sums.shape.erase(sums.shape.begin());
      QuantizeDbias(view, quantized, sums, WorkspaceOf(out.workspace), execution);
    } else {
      Quantize(view, quantized, execution);
    }
    StoreTensorScale(execution, *spec.scheme, scalars, out);
    StoreAmax(execution, *spec.scheme, scalars, in, out);
  });
}

/// Binds operands, results and attributes; the platform follows.
auto Bind() {
  return ffi::Ffi::Bind()
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

NF_EXPORT_HANDLERS(te_dbias_quantize_ffi, DBiasQuantizeFFI, Bind());

}  // namespace narrowfloat::xla_ffi
