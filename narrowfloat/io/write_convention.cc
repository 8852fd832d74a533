// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/write_convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::io {
namespace {

/// Returns the index of a role's entry in a tensor.
std::size_t EntryOfRole(const StoredTensor& tensor, Role role) {
  for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
    if (tensor.plan[i].role == role) return i;
  }
  throw Unsupported(fmt::format("convert: '{}' ({}) needs the buffer {} to be written otherwise",
                                tensor.name, PrintQuantSpec(tensor.quantized->spec),
                                RoleName(role)));
}

/// Splits the rows of stacked experts into matrices; this library counts them as one matrix.
void SplitMatrices(const StoredTensor& tensor, ForeignWeight& form) {
  // An empty tensor has no matrices; ConventionWriter rejects it.
  if (form.shape.size() == 2 || FlattenShape(form.shape).Size() == 0) return;
  const std::size_t rows =
      form.shape.size() < 2 ? 0 : static_cast<std::size_t>(form.shape[form.shape.size() - 2]);
  if (rows == 0 || rows % form.block.rows != 0) {
    throw Unsupported(
        fmt::format("'{}' must be a matrix, or several that no block spans, to have scales that "
                    "another convention holds, got shape {}",
                    tensor.name, ShapeText(form.shape)));
  }
  form.matrices = form.rows / rows;
  form.rows = rows;
}

ForeignWeight FormOfOwn(const StoredTensor& tensor) {
  const QuantizedRecord& record = *tensor.quantized;
  const SchemeInfo& scheme = *record.spec.scheme;
  if (record.spec.swizzled || record.spec.row_scaled ||
      scheme.layout.rowwise_order != ScaleOrder::kLineMajor) {
    throw Unsupported(fmt::format("'{}' ({}) has scales that no other convention holds",
                                  tensor.name, PrintQuantSpec(record.spec)));
  }
  const MatrixShape shape = FlattenShape(record.shape);
  const bool whole = scheme.block == kWholeTensor;
  ForeignWeight form{.codes = tensor.entries[EntryOfRole(tensor, Role::kRowwiseData)].dtype,
                     .scale = tensor.entries[EntryOfRole(tensor, Role::kRowwiseScaleInv)].dtype,
                     .rows = shape.rows,
                     .cols = shape.cols,
                     .block = whole ? WholeBlock(shape)
                                    : BlockShape{scheme.layout.lines_per_scale, scheme.block.cols},
                     .tiled = !whole,
                     .shape = record.shape};
  if (scheme.layout.scale_type == ScaleType::kE4M3) form.global = GlobalScale::kMultiplies;
  SplitMatrices(tensor, form);
  return form;
}

bool IsOfKind(const ForeignWeight& form, BlockKind kind) {
  switch (kind) {
    case BlockKind::kTensor:
      return form.block == BlockShape{form.rows, form.cols};
    case BlockKind::kRow:
      return form.block == BlockShape{1, form.cols};
    case BlockKind::kTile128:
      return form.block == BlockShape{kFp8Block, kFp8Block};
    case BlockKind::kRow32:
      return form.block == BlockShape{1, kMxBlock};
    case BlockKind::kRow16:
      return form.block == BlockShape{1, kNvfp4Block};
  }
  return false;
}

/// Returns the number of matrices that a shape stacks.
std::size_t MatricesOf(const Shape& shape) {
  std::size_t count = 1;
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) count *= static_cast<std::size_t>(shape[i]);
  return count;
}

/// Returns whether a type can store every scale of another type: a power of two is a float.
bool ScaleFits(FileDType from, FileDType to) {
  if (to == FileDType::kF32) return WideFloat(from).has_value() || HoldsExponents(from);
  return HoldsExponents(to) ? HoldsExponents(from) : from == to;
}

Shape WrittenScaleShape(const ForeignWeight& form, ScaleShape kind) {
  const auto rows = static_cast<std::int64_t>(form.ScaleRows());
  const auto cols = static_cast<std::int64_t>(form.ScaleCols());
  Shape shape(form.shape.begin(), form.shape.end() - 2);  // stacked experts
  const Shape of_matrix = kind == ScaleShape::kScalar    ? Shape{}
                          : kind == ScaleShape::kOneItem ? Shape{1}
                          : kind == ScaleShape::kVector  ? Shape{rows}
                          : kind == ScaleShape::kMatrix  ? Shape{rows, cols}
                                                         : Shape{rows, 1, cols, 1};
  shape.insert(shape.end(), of_matrix.begin(), of_matrix.end());
  return shape;
}

/// Returns the shape of the codes, counted in values.
Shape StoredShape(const ForeignWeight& form) {
  Shape shape = form.shape;
  if (form.transposed) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

/// Returns scales in fp32, which is exact for all types.
std::vector<std::byte> InFp32(FileDType dtype, std::span<const std::byte> in) {
  const std::size_t count = 8 * in.size() / Info(dtype).bits;
  std::vector<std::byte> out(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = ScaleValue(dtype, in, i);
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
  return out;
}

/// Returns the bytes of a 16-bit scale in fp32; other bytes unchanged.
std::vector<std::byte> Widened(FileDType dtype, std::span<const std::byte> in) {
  if (dtype == FileDType::kBF16 || dtype == FileDType::kF16) return InFp32(dtype, in);
  return {in.begin(), in.end()};
}

/// Returns the scales of this library's buffers without padding.
std::vector<std::byte> Cropped(const ForeignWeight& form, const TensorEntry& entry,
                               std::span<const std::byte> in) {
  const std::size_t item = Info(entry.dtype).bits / 8;
  const std::size_t stored_bytes = FlattenShape(entry.shape).cols * item;
  const std::size_t row_bytes = form.ScaleCols() * item;
  const std::size_t rows = form.matrices * form.ScaleRows();
  std::vector<std::byte> out(rows * row_bytes);
  if (out.empty()) return out;  // memcpy requires valid pointers, also for no bytes
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(out.data() + row * row_bytes, in.data() + row * stored_bytes, row_bytes);
  }
  return out;
}

/// Returns the scales of the whole tensor in `form`'s meaning.
std::vector<float> GlobalsOf(const StoredTensor& tensor,
                             const std::vector<std::span<const std::byte>>& input,
                             const ForeignWeight& form) {
  if (form.global == GlobalScale::kNone) return {1};
  if (tensor.foreign) {
    std::vector<float> globals(form.globals);
    std::memcpy(globals.data(), input[2].data(), globals.size() * sizeof(float));
    return globals;
  }
  const float amax = ScaleValue(FileDType::kF32, input[EntryOfRole(tensor, Role::kAmaxRowwise)], 0);
  return {GlobalOfAmax(amax, tensor.quantized->spec.e4m3_max)};
}

/// Returns a format's row of names for a weight called `name`; nullptr if no row fits.
const WeightNames* FindNames(const ConventionRow& convention, const WrittenFormat& format,
                             const std::string& name) {
  for (const WeightNames& names : convention.weights.subspan(format.names)) {
    const bool same =
        names.is_written && names.global_scale == convention.weights[format.names].global_scale;
    if (same && name.ends_with(names.plain)) return &names;
  }
  return nullptr;
}

std::vector<std::byte> GlobalBytes(float value, GlobalScale from, GlobalScale to) {
  if (from != to) value = ReciprocalScale(value);
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace

float GlobalOfAmax(float amax, float e4m3_max) {
  const FloatEnvironment environment;
  return amax * (1.0f / (kMaxValue<E2M1> * e4m3_max));
}

ForeignWeight FormOf(const StoredTensor& tensor) {
  return tensor.foreign ? *tensor.foreign : FormOfOwn(tensor);
}

CanonicalWeight Canonical(const StoredTensor& tensor,
                          const std::vector<std::span<const std::byte>>& input) {
  CanonicalWeight weight{.form = FormOf(tensor), .codes = {}, .scales = {}};
  if (tensor.foreign) {
    const ForeignBytes parts = NamedParts(input);
    weight.codes = parts.codes;
    weight.scales = Widened(weight.form.scale, parts.scale);
  } else {
    const std::size_t scale = EntryOfRole(tensor, Role::kRowwiseScaleInv);
    weight.codes = input[EntryOfRole(tensor, Role::kRowwiseData)];
    weight.scales = Cropped(weight.form, tensor.entries[scale], input[scale]);
  }
  if (WideFloat(weight.form.scale)) weight.form.scale = FileDType::kF32;
  if (std::exchange(weight.form.swizzled, false)) {
    weight.scales = ScalesByRow(weight.form, weight.scales);
  }
  if (std::exchange(weight.form.high_half_first, false)) {
    weight.own_codes = ExchangeHalves(weight.codes);
    weight.codes = weight.own_codes;
  }
  weight.globals = GlobalsOf(tensor, input, weight.form);
  return weight;
}

CanonicalWeight WithFp32Scales(CanonicalWeight weight) {
  weight.scales = InFp32(weight.form.scale, weight.scales);
  weight.form.scale = FileDType::kF32;
  return weight;
}

std::vector<const WrittenFormat*> FindWritten(const ConventionRow& convention,
                                              const ForeignWeight& form) {
  // Not for stacked experts that share one scale, or have one more scale for each whole matrix.
  if (form.globals > 1 || form.matrices != MatricesOf(form.shape)) return {};
  std::vector<const WrittenFormat*> same, widened;  // widened: powers of two as floats
  for (const WrittenFormat& format : convention.written) {
    const bool has_global = convention.weights[format.names].global_scale != GlobalScale::kNone;
    if (!IsOfKind(form, format.block) || format.element != ElementOf(form) ||
        !ScaleFits(form.scale, format.scale) || has_global != (form.global != GlobalScale::kNone)) {
      continue;
    }
    (HoldsExponents(form.scale) == HoldsExponents(format.scale) ? same : widened)
        .push_back(&format);
  }
  same.insert(same.end(), widened.begin(), widened.end());
  std::stable_partition(same.begin(), same.end(), [&](const WrittenFormat* format) {
    return format->input_scale.empty() || !form.input_scale.empty();
  });
  return same;
}

std::vector<TensorEntry> PlanWritten(const std::string& operation, const ConventionRow& convention,
                                     const WrittenFormat& format, const std::string& name,
                                     const ForeignWeight& form) {
  const WeightNames* found = FindNames(convention, format, name);
  if (found == nullptr) {
    throw Unsupported(fmt::format("{}: '{}' must end in '{}' to be written as {} {}", operation,
                                  name, convention.weights[format.names].plain, convention.name,
                                  format.name));
  }
  if (format.experts_only && !config::IsExpert(name)) {
    throw Unsupported(
        fmt::format("{}: '{}' must be a part of a module 'experts' to be written as {} {}",
                    operation, name, convention.name, format.name));
  }
  const WeightNames& names = *found;
  if (form.transposed != names.plain_is_transposed || (names.blocked && form.shape.size() != 3)) {
    throw Unsupported(fmt::format("{}: '{}' must be {} to be written as {} {}, got shape {}{}",
                                  operation, name,
                                  names.blocked ? "experts stored as [experts, inputs, outputs]"
                                                : "stored as [outputs, inputs]",
                                  convention.name, format.name, ShapeText(form.shape),
                                  form.transposed ? " of [.., inputs, outputs]" : ""));
  }
  const std::string stem = name.substr(0, name.size() - names.plain.size());
  Shape codes = StoredShape(form);
  if (form.Packed()) codes.back() /= 2;
  if (names.blocked) {
    const auto block = static_cast<std::int64_t>(form.block.cols / 2);
    codes.back() /= block;
    codes.push_back(block);
  }
  std::vector<TensorEntry> entries = {
      {.name = stem + std::string(names.codes), .dtype = format.codes, .shape = std::move(codes)},
      {.name = stem + std::string(names.scale),
       .dtype = format.scale,
       .shape = WrittenScaleShape(form, format.scale_shape)}};
  if (form.global != GlobalScale::kNone) {
    const bool divides = names.global_scale == GlobalScale::kDivides;  // its owner writes one item
    entries.push_back({.name = stem + std::string(names.global),
                       .dtype = FileDType::kF32,
                       .shape = divides ? Shape{1} : Shape{}});
  }
  return entries;
}

std::optional<TensorEntry> WrittenInputScale(const WrittenFormat& format, const std::string& name) {
  if (format.input_scale.empty()) return std::nullopt;
  return TensorEntry{.name = std::string(StemOf(name)).append(format.input_scale),
                     .dtype = FileDType::kF32,
                     .shape = {}};
}

std::vector<std::vector<std::byte>> WrittenScales(const CanonicalWeight& weight,
                                                  const ConventionRow& convention,
                                                  const WrittenFormat& format) {
  const FloatEnvironment environment;
  const ForeignWeight& form = weight.form;
  const bool widens = HoldsExponents(form.scale) && format.scale == FileDType::kF32;
  std::vector<std::vector<std::byte>> out = {widens ? InFp32(form.scale, weight.scales)
                                                    : weight.scales};
  if (form.global != GlobalScale::kNone) {
    out.push_back(GlobalBytes(weight.globals.front(), form.global,
                              convention.weights[format.names].global_scale));
  }
  return out;
}

}  // namespace narrowfloat::io
