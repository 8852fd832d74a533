// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/ops/backends/kernel_buffers.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr std::size_t kAlignment = 16;  // alignment of the words that kernels load

/// Returns the view's rows. Merges dimensions with evenly spaced rows. Errors: Unsupported if more
/// than kMaxRowDims remain.
template <class Byte>
cuda::Rows<Byte> RowsOf(const BasicTensorView<Byte>& view) {
  cuda::Rows<Byte> rows;
  rows.data = view.data;
  rows.shape = FlattenShape(view.shape);
  if (const auto row_stride = RowStride(view)) {
    rows.strides[0] = *row_stride;
  } else {
    std::size_t dims = 0;
    for (std::size_t i = 0; i + 1 < view.shape.size(); ++i) {
      const std::int64_t size = view.shape[i], stride = view.strides[i];
      if (size == 1) continue;
      if (dims > 0 && rows.strides[dims - 1] == stride * size) {
        rows.sizes[dims - 1] *= size;
        rows.strides[dims - 1] = stride;
        continue;
      }
      if (dims == cuda::kMaxRowDims) {
        throw Unsupported(
            fmt::format("cuda: the rows of a tensor must lie by at most {} strides, got shape {}",
                        cuda::kMaxRowDims, ShapeText(view.shape)));
      }
      rows.sizes[dims] = size;
      rows.strides[dims++] = stride;
    }
    rows.dims = static_cast<int>(std::max<std::size_t>(dims, 1));
  }
  auto bits = reinterpret_cast<std::uintptr_t>(rows.data);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.dims); ++i)
    bits |= static_cast<std::uintptr_t>(rows.strides[i]);
  rows.is_aligned = bits % kAlignment == 0;
  return rows;
}

template <class Byte>
cuda::DirectionMemory<Byte> MemoryOf(const BasicQuantizedView<Byte>& view, Direction direction) {
  const DirectionBuffers<Byte> buffers = BuffersOf(view, direction);
  cuda::DirectionMemory<Byte> memory;
  memory.codes = buffers.codes;
  memory.code_stride = buffers.code_stride;
  memory.scale_inv = buffers.scale_inv;
  memory.strides = buffers.strides;
  memory.line_amaxes = reinterpret_cast<const float*>(buffers.line_amaxes);
  return memory;
}

void ZeroPadding(const QuantizedView& out, Direction direction, MatrixShape matrix,
                 const Execution& execution) {
  const TensorView& scales = out[ScaleInvRole(direction)];
  const ScaleGrid grid = MakeScaleGrid(*out.spec.scheme, direction, matrix);
  if (grid.Items() == grid.lines * grid.blocks || scales.data == nullptr) return;
  cuda::CopyBytes(scales.data, nullptr, grid.Items() * ItemSize(scales.dtype), execution.noop,
                  execution.stream);
}

/// Device memory of the numbers that kernels compute and use within one call.
class Scratch {
 public:
  /// Allocates the memory, with `lines` line amaxes.
  Scratch(std::size_t lines, cuda::Stream stream)
      : bytes_(sizeof(Numbers) + lines * sizeof(unsigned)), memory_(bytes_, stream) {}

  /// Zeroes all amaxes. They must be zero before kernels compute maxima in them.
  void ZeroAmaxes(cuda::Stream stream) {
    constexpr std::size_t kFirst = offsetof(Numbers, amax_bits);
    cuda::CopyBytes(memory_.data() + kFirst, nullptr, bytes_ - kFirst, nullptr, stream);
  }

  unsigned* amax_bits() { return &numbers()->amax_bits; }
  unsigned* columnwise_amax_bits() { return &numbers()->columnwise_amax_bits; }
  float* tensor_scale() { return &numbers()->tensor_scale; }
  std::byte* rowwise_state() { return numbers()->states[0]; }
  std::byte* columnwise_state() { return numbers()->states[1]; }
  unsigned* line_amax_bits(std::size_t first) {
    return reinterpret_cast<unsigned*>(numbers() + 1) + first;
  }

  /// Converts pointers to amaxes: kernels compute the maximum of an amax's bits as an integer.
  static float* AsFloats(unsigned* bits) { return reinterpret_cast<float*>(bits); }
  static const std::byte* AsBytes(const unsigned* bits) {
    return reinterpret_cast<const std::byte*>(bits);
  }

 private:
  /// Layout in device memory. The line amaxes follow.
  struct Numbers {
    alignas(kAlignment) std::byte states[2][cuda::kMostStateBytes];
    float tensor_scale;
    unsigned amax_bits, columnwise_amax_bits;
  };

  Numbers* numbers() { return reinterpret_cast<Numbers*>(memory_.data()); }

  std::size_t bytes_;
  cuda::Memory memory_;
};

/// One call of Quantize.
class QuantizeRun {
 public:
  QuantizeRun(const ConstTensorView& in, const QuantizedView& out, const Execution& execution)
      : in_(in),
        out_(out),
        execution_(execution),
        spec_(out.spec),
        kernels_(cuda::KernelsOfScheme(SchemeIndex(*spec_.scheme))),
        rows_(RowsOf(in)) {}

  /// Writes sums of strips to `strip_sums` too, if it is not null and columns are quantized.
  void Run(float* strip_sums = nullptr) {
    cuda::QuantizeCall call = MakeCall();
    call.strip_sums = strip_sums;
    const AmaxBuffers amaxes = spec_.scheme->layout.amax;
    if (amaxes != AmaxBuffers::kNone) {
      scratch_.emplace(spec_.row_scaled ? rows_.shape.rows + rows_.shape.cols : 0,
                       execution_.stream);
      if (spec_.row_scaled) {
        FindLineAmaxes(call);
      } else {
        FindAmaxes(call);
      }
    }
    ZeroPadding(out_, Direction::kRowwise, rows_.shape, execution_);
    ZeroPadding(out_, Direction::kColumnwise, rows_.shape, execution_);
    kernels_.quantize(call);
    if (Measures() && call.amax_bits == scratch_->amax_bits())
      Copy(Role::kAmaxRowwise, scratch_->amax_bits(), 1);
  }

 private:
  bool HasScale() const { return spec_.scale || execution_.scale != nullptr; }
  bool HasAmax() const { return spec_.amax || execution_.amax != nullptr; }
  bool HasColumnwiseAmax() const {
    return spec_.amax_columnwise || execution_.amax_columnwise != nullptr;
  }
  bool Transforms() const { return spec_.rht && spec_.columnwise; }
  /// Returns true if the amax is an output only, measured during quantization.
  bool Measures() const {
    return spec_.scheme->layout.amax == AmaxBuffers::kOne && HasScale() && !HasAmax();
  }
  std::uint32_t SignMask() const { return static_cast<std::uint32_t>(spec_.rht_sign_mask); }

  cuda::QuantizeCall MakeCall() const {
    cuda::QuantizeCall call{};
    call.dtype = in_.dtype;
    call.in = rows_;
    if (spec_.rowwise) call.rowwise = MemoryOf(out_, Direction::kRowwise);
    if (spec_.columnwise) call.columnwise = MemoryOf(out_, Direction::kColumnwise);
    call.options = ScaleOptionsOf(spec_, in_.dtype);
    call.options.has_scale = HasScale();
    call.stochastic = spec_.stochastic_rounding;
    call.random = {spec_.seed, spec_.offset};
    call.random_at = execution_.random;
    call.transforms = Transforms();
    call.sign_mask = SignMask();
    call.noop = execution_.noop;
    call.stream = execution_.stream;
    return call;
  }

  void Copy(Role role, const unsigned* from, std::size_t count) const {
    if (out_[role].data == nullptr) return;
    cuda::CopyBytes(out_[role].data, Scratch::AsBytes(from), count * sizeof(float), execution_.noop,
                    execution_.stream);
  }

  void FindLineAmaxes(cuda::QuantizeCall& call) {
    scratch_->ZeroAmaxes(execution_.stream);
    unsigned* of_rows = scratch_->line_amax_bits(0);
    unsigned* of_columns = scratch_->line_amax_bits(rows_.shape.rows);
    if (spec_.rowwise) {
      cuda::RaiseLineAmaxes(in_.dtype, rows_, Direction::kRowwise, of_rows, execution_.stream);
      call.rowwise.line_amaxes = Scratch::AsFloats(of_rows);
      Copy(Role::kAmaxRowwise, of_rows, rows_.shape.rows);
    }
    if (spec_.columnwise) {
      cuda::RaiseLineAmaxes(in_.dtype, rows_, Direction::kColumnwise, of_columns,
                            execution_.stream);
      call.columnwise.line_amaxes = Scratch::AsFloats(of_columns);
      Copy(Role::kAmaxColumnwise, of_columns, rows_.shape.cols);
    }
  }

  void FindAmaxes(cuda::QuantizeCall& call) {
    cuda::TensorNumbers numbers;
    numbers.rowwise_amax = {execution_.amax, spec_.amax.value_or(0.0f)};
    const bool raises =
        !HasAmax() && !HasScale() && (spec_.rowwise || (!Transforms() && !HasColumnwiseAmax()));
    const bool raises_columnwise = Transforms() && !HasAmax() && !HasColumnwiseAmax();
    if (raises || raises_columnwise) scratch_->ZeroAmaxes(execution_.stream);
    if (raises) {
      cuda::RaiseAmax(in_.dtype, rows_, scratch_->amax_bits(), execution_.stream);
      numbers.rowwise_amax.at = Scratch::AsFloats(scratch_->amax_bits());
    }
    numbers.columnwise_amax = numbers.rowwise_amax;
    if (HasColumnwiseAmax()) {
      numbers.columnwise_amax = {execution_.amax_columnwise, spec_.amax_columnwise.value_or(0.0f)};
    } else if (raises_columnwise) {
      cuda::RaiseHadamardAmax(in_.dtype, rows_, SignMask(), scratch_->columnwise_amax_bits(),
                              execution_.stream);
      numbers.columnwise_amax.at = Scratch::AsFloats(scratch_->columnwise_amax_bits());
    }
    numbers.scale = {execution_.scale, spec_.scale.value_or(1.0f)};
    numbers.options = call.options;
    if (Measures()) {
      // The kernel writes its maximum to the output buffer directly, if that is aligned.
      auto* amax = reinterpret_cast<unsigned*>(out_[Role::kAmaxRowwise].data);
      const bool fits =
          amax != nullptr && reinterpret_cast<std::uintptr_t>(amax) % alignof(unsigned) == 0;
      call.amax_bits = numbers.zeroed = fits ? amax : scratch_->amax_bits();
    } else {
      numbers.rowwise_amax_out = out_[Role::kAmaxRowwise].data;
    }
    numbers.columnwise_amax_out = out_[Role::kAmaxColumnwise].data;
    if (spec_.scheme->block == kWholeTensor) {
      numbers.scale_out = out_[Role::kScale].data;
      numbers.rowwise_scale_inv_out = out_[Role::kRowwiseScaleInv].data;
      numbers.columnwise_scale_inv_out = out_[Role::kColumnwiseScaleInv].data;
      numbers.tensor_scale = scratch_->tensor_scale();
      call.tensor_scale = numbers.tensor_scale;
    }
    if (spec_.scheme->layout.amax == AmaxBuffers::kPerDirection) {
      call.rowwise.state = numbers.rowwise_state = scratch_->rowwise_state();
      call.columnwise.state = numbers.columnwise_state = scratch_->columnwise_state();
    }
    numbers.noop = execution_.noop;
    numbers.stream = execution_.stream;
    kernels_.store_numbers(numbers);
    call.rowwise.amax = numbers.rowwise_amax;
    call.columnwise.amax = numbers.columnwise_amax;
  }

  const ConstTensorView& in_;
  const QuantizedView& out_;
  const Execution& execution_;
  const QuantSpec& spec_;
  const cuda::SchemeKernels& kernels_;
  cuda::Rows<const std::byte> rows_;
  std::optional<Scratch> scratch_;
};

void QuantizeOne(const ConstTensorView& in, const QuantizedView& out, const Execution& execution) {
  QuantizeRun(in, out, execution).Run();
}

void DequantizeOne(const ConstQuantizedView& in, Direction direction, const TensorView& out,
                   const Execution& execution, const float* noop) {
  cuda::DequantizeCall call{};
  call.dtype = out.dtype;
  call.direction = direction;
  call.in = MemoryOf(in, direction);
  const std::byte* amax = in[AmaxRole(direction)].data;
  if (amax != nullptr && call.in.line_amaxes == nullptr)
    call.in.amax.at = reinterpret_cast<const float*>(amax);
  call.out = RowsOf(out);
  call.options = ScaleOptionsOf(in.spec, out.dtype);
  call.noop = noop;
  call.stream = execution.stream;
  cuda::KernelsOfScheme(SchemeIndex(*in.spec.scheme)).dequantize(call);
}

/// Writes the amax that raise(amax_bits) computes.
template <class Raise>
void StoreAmax(std::byte* amax, cuda::Stream stream, const Raise& raise) {
  Scratch scratch(0, stream);
  scratch.ZeroAmaxes(stream);
  raise(scratch.amax_bits());
  cuda::CopyBytes(amax, Scratch::AsBytes(scratch.amax_bits()), sizeof(float), nullptr, stream);
}

static_assert(cuda::kSumStripRows == kDbiasStripRows);

/// The sums of the strips of a tensor, in the caller's workspace or in allocated memory.
class StripSums {
 public:
  StripSums(MatrixShape shape, std::optional<std::span<float>> workspace, cuda::Stream stream) {
    const std::size_t count = CeilDiv(shape.rows, kDbiasStripRows) * shape.cols;
    const bool fits = workspace && workspace->size() >= count &&
                      reinterpret_cast<std::uintptr_t>(workspace->data()) % alignof(float) == 0;
    if (!fits) own_.emplace(count * sizeof(float), stream);
    data_ = fits ? workspace->data() : reinterpret_cast<float*>(own_->data());
  }
  float* data() const { return data_; }

 private:
  std::optional<cuda::Memory> own_;
  float* data_;
};

}  // namespace

void CudaBackend::Amax(const ConstTensorView& in, std::byte* amax,
                       const Execution& execution) const {
  const cuda::Rows<const std::byte> rows = RowsOf(in);
  cuda::RequireDevice();
  StoreAmax(amax, execution.stream,
            [&](unsigned* bits) { cuda::RaiseAmax(in.dtype, rows, bits, execution.stream); });
}

void CudaBackend::HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, std::byte* amax,
                               const Execution& execution) const {
  const cuda::Rows<const std::byte> rows = RowsOf(in);
  cuda::RequireDevice();
  StoreAmax(amax, execution.stream, [&](unsigned* bits) {
    cuda::RaiseHadamardAmax(in.dtype, rows, sign_mask, bits, execution.stream);
  });
}

void CudaBackend::HadamardTransform(const ConstTensorView& in, const TensorView& out,
                                    std::uint32_t sign_mask, const Execution& execution) const {
  const cuda::Rows<const std::byte> rows = RowsOf(in);
  const cuda::Rows<std::byte> out_rows = RowsOf(out);
  cuda::RequireDevice();
  if (rows.shape.Size() > 0)
    cuda::TransformHadamard(in.dtype, rows, out_rows, sign_mask, execution.stream);
}

void CudaBackend::ColumnSums(const ConstTensorView& in, const TensorView& sums,
                             const Execution& execution) const {
  cuda::RequireDevice();
  const cuda::Rows<const std::byte> rows = RowsOf(in);
  const StripSums strips(rows.shape, std::nullopt, execution.stream);
  cuda::SumStrips(in.dtype, rows, strips.data(), nullptr, execution.stream);
  cuda::AddStrips(strips.data(), rows.shape, sums.dtype, sums.data, nullptr, execution.stream);
}

void CudaBackend::UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                                     const DelayedScaleRule& rule,
                                     const ConstTensorView* reduced_amax,
                                     const Execution& execution) const {
  cuda::RequireDevice();
  cuda::UpdateDelayedScale({amax_history.data, scale.data,
                            reduced_amax != nullptr ? reduced_amax->data : nullptr,
                            FlattenShape(amax_history.shape),
                            ScaledMax("update_delayed_scale", rule.fp8_max, rule.margin),
                            rule.algorithm == AmaxAlgorithm::kMostRecent, execution.stream});
}

void CudaBackend::Quantize(const ConstTensorView& in, const QuantizedView& out,
                           const Execution& execution) const {
  cuda::RequireDevice();
  QuantizeOne(in, out, execution);
}

void CudaBackend::QuantizeDbias(const ConstTensorView& in, const QuantizedView& out,
                                const TensorView& dbias, std::optional<std::span<float>> workspace,
                                const Execution& execution) const {
  cuda::RequireDevice();
  const cuda::Rows<const std::byte> rows = RowsOf(in);
  const StripSums strips(rows.shape, workspace, execution.stream);
  QuantizeRun(in, out, execution).Run(strips.data());
  if (!out.spec.columnwise)
    cuda::SumStrips(in.dtype, rows, strips.data(), execution.noop, execution.stream);
  cuda::AddStrips(strips.data(), rows.shape, dbias.dtype, dbias.data, execution.noop,
                  execution.stream);
}

void CudaBackend::GroupedQuantize(std::span<const ConstTensorView> ins,
                                  std::span<const QuantizedView> outs,
                                  const Execution& execution) const {
  cuda::RequireDevice();
  for (std::size_t g = 0; g < ins.size(); ++g) QuantizeOne(ins[g], outs[g], execution);
}

void CudaBackend::Dequantize(const ConstQuantizedView& in, Direction direction,
                             const TensorView& out, const Execution& execution) const {
  cuda::RequireDevice();
  DequantizeOne(in, direction, out, execution, nullptr);
}

void CudaBackend::FakeQuantize(const ConstTensorView& in, const QuantSpec& spec,
                               const TensorView& out, const Execution& execution) const {
  cuda::RequireDevice();
  constexpr std::size_t kUnit = 256;
  std::size_t bytes = 0;
  std::array<std::size_t, kRoleCount> offsets{};
  for (const BufferPlan& buffer : PlanQuantize(spec, in.shape)) {
    if (buffer.storage != buffer.role) continue;
    offsets[static_cast<std::size_t>(buffer.role)] = bytes;
    bytes += RoundUp(BufferBytes(buffer), kUnit);
  }
  const cuda::Memory memory(bytes, execution.stream);
  const auto view = BindBuffers<QuantizedView>(
      spec, in.shape,
      [&](const BufferPlan& buffer) {
        return memory.data() + offsets[static_cast<std::size_t>(buffer.storage)];
      },
      Device::kCuda);
  QuantizeOne(in, view, execution);
  DequantizeOne(view, spec.rowwise ? Direction::kRowwise : Direction::kColumnwise, out, execution,
                execution.noop);
}

void CudaBackend::Requantize(const ConstQuantizedView& in, Direction direction,
                             const QuantizedView& out, DType between,
                             const Execution& execution) const {
  cuda::RequireDevice();
  const cuda::Memory memory(FlattenShape(in.shape).Size() * ItemSize(between), execution.stream);
  const TensorView values{memory.data(), between, in.shape, {}, Device::kCuda};
  DequantizeOne(in, direction, values, execution, nullptr);
  QuantizeOne(values, out, execution);
}

void CudaBackend::Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
                          const Execution& execution) const {
  cuda::RequireDevice();
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (!HasDirection(in, direction)) continue;
    const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
    const DirectionBuffers<std::byte> to = BuffersOf(out, direction);
    const ScaleGrid grid = MakeScaleGrid(*in.spec.scheme, direction, FlattenShape(in.shape));
    cuda::PermuteScales(from.scale_inv, from.strides, to.scale_inv, to.strides, grid,
                        KeptScales(grid, out.spec), execution.stream);
    for (const Role role : {DataRole(direction), AmaxRole(direction)}) {
      if (in[role].data == out[role].data || in[role].data == nullptr) continue;
      cuda::CopyBytes(out[role].data, in[role].data,
                      FlattenShape(in[role].shape).Size() * ItemSize(in[role].dtype), nullptr,
                      execution.stream);
    }
  }
}

void CudaBackend::BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                                     const TensorView& scales, const Execution& execution) const {
  cuda::RequireDevice();
  const SchemeInfo& scheme = *in.spec.scheme;
  const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
  const ScaleGrid grid = Mxfp8Grid(in, direction);
  const std::size_t repeats = scheme.block.cols / kMxBlock;
  const cuda::Memory memory(kAlignment + grid.Items(), execution.stream);
  cuda::CopyBytes(memory.data(), nullptr, kAlignment + grid.Items(), nullptr, execution.stream);
  auto* refused_at = reinterpret_cast<unsigned*>(memory.data());
  std::byte* bytes = memory.data() + kAlignment;
  cuda::StoreExponents(
      {from.scale_inv, from.strides, bytes, MakeScaleStrides(grid, ScalePlacement::kSwizzled),
       grid.lines, grid.blocks, scheme.layout.lines_per_scale, repeats, refused_at},
      execution.stream);
  unsigned refused = 0;
  cuda::Copy(&refused, refused_at, sizeof refused, execution.stream);
  cuda::Synchronize(execution.stream);
  if (refused != 0) {
    const std::size_t item = ~refused, line = item / grid.blocks,
                      block = item % grid.blocks / repeats;
    const std::size_t source = from.strides.LineOffset(line / scheme.layout.lines_per_scale) +
                               from.strides.BlockOffset(block);
    float scale_inv = 0.0f;
    cuda::Copy(&scale_inv, from.scale_inv + source * sizeof scale_inv, sizeof scale_inv,
               execution.stream);
    cuda::Synchronize(execution.stream);
    RefuseBlockScale(line, block, scale_inv);
  }
  cuda::CopyBytes(scales.data, bytes, grid.Items(), nullptr, execution.stream);
}

void CudaBackend::DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                                   const Execution& execution) const {
  cuda::RequireDevice();
  const SchemeInfo& scheme = *in.spec.scheme;
  const MatrixShape matrix = FlattenShape(in.shape);
  cuda::Transpose(in[Role::kRowwiseData].data, out[Role::kColumnwiseData].data, matrix,
                  scheme.element_bits, execution.stream);
  if (scheme.block == kWholeTensor) return;
  const ConstTensorView& scales = in[Role::kRowwiseScaleInv];
  const TensorView& to = out[Role::kColumnwiseScaleInv];
  const ScaleGrid rows = MakeScaleGrid(scheme, Direction::kRowwise, matrix);
  const ScaleGrid columns = MakeScaleGrid(scheme, Direction::kColumnwise, matrix);
  ZeroPadding(out, Direction::kColumnwise, matrix, execution);
  cuda::TransposeScales(
      {scales.data, to.data, ItemSize(scales.dtype),
       MakeScaleStrides(rows, ScalePlacement::kCompact),
       MakeScaleStrides(columns, ScalePlacement::kCompact), columns.lines, columns.blocks,
       scheme.block.rows, scheme.block.cols, scheme.layout.lines_per_scale},
      execution.stream);
}

void CudaBackend::TransposeCodes(const ConstTensorView& in, const TensorView& out,
                                 const Execution& execution) const {
  cuda::RequireDevice();
  cuda::Transpose(in.data, out.data, FlattenShape(in.shape), 8, execution.stream);
}

void CudaBackend::Multiply(std::span<const Product> /*products*/, GemmMode /*mode*/,
                           const Execution& /*execution*/) const {
  throw Unsupported("qgemm: products must be of tensors in cpu memory, got cuda memory");
}

}  // namespace narrowfloat
