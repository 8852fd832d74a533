// SPDX-License-Identifier: Apache-2.0
// nf_gemm_ffi: the product of two matrices of codes, or of one pair for each group.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/buffers.h"
#include "bindings/ffi/decoding.h"
#include "bindings/ffi/execution.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/types/transpose_codes.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr const char* kVerb = "gemm";

using Result = ffi::Result<ffi::AnyBuffer>;

/// Names of an operand and its buffers in messages.
struct OperandNames {
  const char *data, *scale_inv, *amax;
};
constexpr OperandNames kLhsNames{"lhs", "scale_inv of lhs", "amax of lhs"};
constexpr OperandNames kRhsNames{"rhs", "scale_inv of rhs", "amax of rhs"};

/// An operand: matrices of codes, one for each group, back to back as they lie in memory.
/// rows, cols: of each matrix; -1 is the size of the group. is_turned: columnwise codes lie in
/// rows, where the scheme has them transposed.
struct Operand {
  OperandNames names;
  ffi::AnyBuffer data, scale_inv, amax;
  QuantSpec spec;
  std::int64_t rows, cols;
  bool is_turned;

  const SchemeInfo& Scheme() const { return *spec.scheme; }
  bool HasOneScale() const { return Scheme().layout.lines_per_scale == 0; }
};

QuantSpec SpecOfOneDirection(std::string_view text) {
  const QuantSpec spec = ParseQuantSpec(text);
  if (spec.rowwise != spec.columnwise) return spec;
  throw InvalidArgument(fmt::format(
      "{}: spec must name one direction, the one that data holds, got '{}'", kVerb, text));
}

/// The memory of the groups' buffers, taken one group after another.
class OperandBuffers {
 public:
  OperandBuffers(const Operand& operand, std::size_t groups, const Execution& execution)
      : operand_(operand),
        execution_(execution),
        groups_(groups),
        codes_(operand.data.element_count()),
        scales_(operand.scale_inv.element_count()) {
    Codes({kVerb, operand.names.data}, operand.data, operand.Scheme(), codes_);
    CheckScaleDType({kVerb, operand.names.scale_inv}, operand.scale_inv, operand.Scheme());
    if (!operand.is_turned) return;
    if (!operand.HasOneScale() || !operand.spec.columnwise) {
      throw InvalidArgument(fmt::format(
          "{}: codes of {} can be turned if they are columnwise and have one scale, got {}", kVerb,
          operand.names.data, operand.Scheme().name));
    }
    turned_ = std::make_unique_for_overwrite<std::byte[]>(codes_);
  }

  /// The matrix of group `group`, whose size is `size`. Requires: groups in order.
  ConstQuantizedView Take(std::size_t group, std::int64_t size) {
    const auto extent = [size](std::int64_t n) { return n < 0 ? size : n; };
    const Shape shape{extent(operand_.rows), extent(operand_.cols)};
    return BindBuffers<ConstQuantizedView>(operand_.spec, shape, [&](const BufferPlan& buffer) {
      return Memory(buffer, group, shape);
    });
  }

  /// Errors: InvalidArgument if codes are left over, or scales without groups are.
  void CheckAllTaken(bool is_grouped) const {
    if (used_codes_ != codes_) throw Mismatch(operand_.names.data, used_codes_, operand_.data);
    if (!is_grouped && used_scales_ != scales_)
      throw Mismatch(operand_.names.scale_inv, used_scales_, operand_.scale_inv);
  }

 private:
  static InvalidArgument Mismatch(const char* name, std::size_t count,
                                  const ffi::AnyBuffer& buffer) {
    return InvalidArgument(fmt::format("{}: {} must have {} items, got shape {}", kVerb, name,
                                       count, ShapeText(ShapeOf(buffer))));
  }

  const std::byte* Memory(const BufferPlan& buffer, std::size_t group, const Shape& shape) {
    switch (buffer.role) {
      case Role::kRowwiseData:
      case Role::kColumnwiseData: {
        const std::size_t first = Advance(operand_.names.data, operand_.data, used_codes_, codes_,
                                          FlattenShape(shape).Size());
        const std::byte* codes = BytesAt(operand_.data, CodeBytes(operand_.Scheme(), first));
        if (!operand_.is_turned) return codes;
        TransposeCodes(codes, turned_.get() + first, FlattenShape(shape), execution_);
        return turned_.get() + first;
      }
      case Role::kRowwiseScaleInv:
      case Role::kColumnwiseScaleInv: {
        const std::size_t count = operand_.HasOneScale() ? 1 : FlattenShape(buffer.shape).Size();
        const std::size_t first =
            Advance(operand_.names.scale_inv, operand_.scale_inv, used_scales_, scales_, count);
        return BytesAt(operand_.scale_inv,
                       first * ffi::ByteWidth(operand_.scale_inv.element_type()));
      }
      case Role::kAmaxRowwise:
      case Role::kAmaxColumnwise:
        if (operand_.Scheme().layout.amax != AmaxBuffers::kPerDirection) return nullptr;
        return reinterpret_cast<const std::byte*>(
            Floats({kVerb, operand_.names.amax}, operand_.amax, groups_) + group);
      case Role::kScale:
        break;
    }
    return nullptr;
  }

  /// Takes the next `count` items of a buffer. Errors: InvalidArgument if there are fewer.
  static std::size_t Advance(const char* name, const ffi::AnyBuffer& buffer, std::size_t& used,
                             std::size_t items, std::size_t count) {
    if (count > items - used) throw Mismatch(name, used + count, buffer);
    return std::exchange(used, used + count);
  }

  static const std::byte* BytesAt(const ffi::AnyBuffer& buffer, std::size_t offset) {
    return static_cast<const std::byte*>(buffer.untyped_data()) + offset;
  }

  const Operand& operand_;
  const Execution& execution_;
  std::unique_ptr<std::byte[]> turned_;
  const std::size_t groups_, codes_, scales_;
  std::size_t used_codes_ = 0, used_scales_ = 0;
};

/// Sizes of the groups; one of size 0, which no operand refers to, where there are no groups.
std::vector<std::int64_t> SizesOf(const ffi::AnyBuffer& group_sizes) {
  if (group_sizes.element_count() == 0) return {0};
  CheckDType({kVerb, "group_sizes"}, group_sizes, ffi::S32);
  const auto* begin = static_cast<const std::int32_t*>(group_sizes.untyped_data());
  std::vector<std::int64_t> sizes(begin, begin + group_sizes.element_count());
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (sizes[g] >= 0) continue;
    throw InvalidArgument(
        fmt::format("{}: group {} cannot have a negative size, got {}", kVerb, g, sizes[g]));
  }
  return sizes;
}

GemmLayout LayoutOf(const Operand& lhs, const Operand& rhs) {
  if (lhs.spec.rowwise) return rhs.spec.rowwise ? GemmLayout::kTN : GemmLayout::kNN;
  if (rhs.spec.columnwise) return GemmLayout::kNT;
  throw InvalidArgument(fmt::format("{}: columnwise lhs needs columnwise rhs, got rowwise", kVerb));
}

/// Parts of the output and of the bias, one for each group, back to back.
struct Results {
  std::vector<TensorView> outs;
  std::vector<ConstTensorView> biases;
};

Results SplitResults(ffi::AnyBuffer& output, const ffi::AnyBuffer& bias,
                     const std::vector<Shape>& shapes) {
  Results results;
  std::size_t items = 0, bias_items = 0;
  for (const Shape& shape : shapes) {
    items += FlattenShape(shape).Size();
    bias_items += static_cast<std::size_t>(shape[1]);
  }
  CheckCount({kVerb, "the output"}, output, items);
  const bool has_bias = bias.element_count() > 0;
  if (has_bias) CheckCount({kVerb, "bias"}, bias, bias_items);
  TensorView out = MutableMatrixView({kVerb, "the output"}, output, {1, items});
  ConstTensorView addend = FlatView({kVerb, "bias"}, bias);
  for (const Shape& shape : shapes) {
    out.shape = shape;
    results.outs.push_back(out);
    out.data += FlattenShape(shape).Size() * ffi::ByteWidth(output.element_type());
    if (!has_bias) continue;
    addend.shape = {shape[1]};
    results.biases.push_back(addend);
    addend.data += static_cast<std::size_t>(shape[1]) * ffi::ByteWidth(bias.element_type());
  }
  return results;
}

void Multiply(const Operand& lhs, const Operand& rhs, const ffi::AnyBuffer& bias,
              const ffi::AnyBuffer& group_sizes, ffi::AnyBuffer& output,
              const Execution& execution) {
  const bool is_grouped = group_sizes.element_count() > 0;
  const std::vector<std::int64_t> sizes = SizesOf(group_sizes);
  const GemmLayout layout = LayoutOf(lhs, rhs);
  OperandBuffers lhs_buffers(lhs, sizes.size(), execution);
  OperandBuffers rhs_buffers(rhs, sizes.size(), execution);
  std::vector<ConstQuantizedView> a, b;
  std::vector<Shape> shapes;
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    a.push_back(lhs_buffers.Take(g, sizes[g]));
    b.push_back(rhs_buffers.Take(g, sizes[g]));
    shapes.push_back(QgemmShape(a[g], b[g], layout, kVerb));
  }
  lhs_buffers.CheckAllTaken(is_grouped);
  rhs_buffers.CheckAllTaken(is_grouped);
  const Results results = SplitResults(output, bias, shapes);
  if (is_grouped) {
    const GroupedGemmOptions options{
        .layout = layout, .biases = results.biases, .mode = GemmMode::kReproducible};
    GroupedQgemm(a, b, results.outs, options, execution);
    return;
  }
  GemmOptions options{.layout = layout, .mode = GemmMode::kReproducible};
  if (!results.biases.empty()) options.bias = results.biases[0];
  Qgemm(a[0], b[0], results.outs[0], options, execution);
}

template <class Context>
ffi::Error GemmFFI(Context context, ffi::AnyBuffer lhs, ffi::AnyBuffer lhs_scale_inv,
                   ffi::AnyBuffer lhs_amax, ffi::AnyBuffer rhs, ffi::AnyBuffer rhs_scale_inv,
                   ffi::AnyBuffer rhs_amax, ffi::AnyBuffer bias, ffi::AnyBuffer group_sizes,
                   Result output, std::string_view lhs_spec, std::int64_t lhs_rows,
                   std::int64_t lhs_cols, bool lhs_turned, std::string_view rhs_spec,
                   std::int64_t rhs_rows, std::int64_t rhs_cols, bool rhs_turned) {
  return RunOn(context, [&](const Execution& execution) {
    const Operand left{kLhsNames, lhs,      lhs_scale_inv, lhs_amax, SpecOfOneDirection(lhs_spec),
                       lhs_rows,  lhs_cols, lhs_turned};
    const Operand right{kRhsNames, rhs,      rhs_scale_inv, rhs_amax, SpecOfOneDirection(rhs_spec),
                        rhs_rows,  rhs_cols, rhs_turned};
    Multiply(left, right, bias, group_sizes, *output, execution);
  });
}

template <class Binding>
auto Bind(Binding&& binding) {
  return std::forward<Binding>(binding)
      .template Arg<ffi::AnyBuffer>()  // lhs
      .template Arg<ffi::AnyBuffer>()  // lhs_scale_inv
      .template Arg<ffi::AnyBuffer>()  // lhs_amax
      .template Arg<ffi::AnyBuffer>()  // rhs
      .template Arg<ffi::AnyBuffer>()  // rhs_scale_inv
      .template Arg<ffi::AnyBuffer>()  // rhs_amax
      .template Arg<ffi::AnyBuffer>()  // bias, of no items where there is none
      .template Arg<ffi::AnyBuffer>()  // group_sizes, of no items where there are no groups
      .template Ret<ffi::AnyBuffer>()  // output
      .template Attr<std::string_view>("lhs_spec")
      .template Attr<std::int64_t>("lhs_rows")
      .template Attr<std::int64_t>("lhs_cols")
      .template Attr<bool>("lhs_turned")
      .template Attr<std::string_view>("rhs_spec")
      .template Attr<std::int64_t>("rhs_rows")
      .template Attr<std::int64_t>("rhs_cols")
      .template Attr<bool>("rhs_turned");
}

}  // namespace

NF_EXPORT_HANDLER(nf_gemm_ffi, GemmFFI<ffi::ThreadPool>,
                  Bind(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));

}  // namespace narrowfloat::xla_ffi
