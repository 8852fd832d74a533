// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/own_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat::io {
namespace {

/// Returns whether the scales of two weights belong to the same blocks, with any types.
bool SameBlocks(const ForeignWeight& a, const ForeignWeight& b) {
  return a.matrices == b.matrices && a.rows == b.rows && a.cols == b.cols && a.block == b.block;
}

bool SameCodes(FileDType a, FileDType b, bool packed) {
  return packed || a == b;
}

/// Returns the form of a scheme's tensors of that shape; nullopt if it has none.
std::optional<ForeignWeight> FormOfScheme(const SchemeInfo& scheme, const Shape& shape) {
  try {
    return FormOf(AsStored({"", {.scheme = &scheme}, shape, DType::kFloat32}));
  } catch (const Unsupported&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {  // the shape does not fit the blocks
    return std::nullopt;
  }
}

bool Holds(const ForeignWeight& own, const ForeignWeight& form, bool widens) {
  const bool scales = own.scale == form.scale ||
                      (HoldsExponents(own.scale) && HoldsExponents(form.scale)) ||
                      (own.scale == FileDType::kF32 &&
                       (WideFloat(form.scale) || (widens && HoldsExponents(form.scale))));
  // A scheme must be able to store the scale of the whole tensor. A weight without this scale has a
  // scale of 1.
  const bool global = own.global != GlobalScale::kNone || form.global == GlobalScale::kNone;
  return global && own.Packed() == form.Packed() &&
         SameCodes(own.codes, form.codes, own.Packed()) && SameBlocks(own, form) && scales;
}

void StoreFloat(float value, std::span<std::byte> out) {
  std::memcpy(out.data(), &value, sizeof value);
}

/// Returns the amax that gives the scale of the whole tensor, or the nearest one. Some scales have
/// no exact amax, because an amax is multiplied by a constant and rounded.
float AmaxOfGlobal(const CanonicalWeight& weight, float e4m3_max) {
  float global = weight.globals.front();
  if (weight.form.global == GlobalScale::kDivides) global = ReciprocalScale(global);
  const float nearest = global * (kMaxValue<E2M1> * e4m3_max);
  for (const float amax :
       {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, INFINITY)}) {
    if (GlobalOfAmax(amax, e4m3_max) == global) return amax;
  }
  return nearest;
}

/// Returns the largest magnitude of per-tensor FP8. Decodes each code that occurs once.
float AmaxOfCodes(const CanonicalWeight& weight, float scale_inv) {
  std::array<bool, 256> occurs{};
  for (const std::byte code : weight.codes) occurs[std::to_integer<std::size_t>(code)] = true;
  const std::array<float, 256> values = ValuesOfCodes(weight.form.codes);
  float largest = 0;
  for (std::size_t code = 0; code < values.size(); ++code) {
    if (occurs[code]) largest = std::max(largest, std::abs(values[code]));  // ignores NaN
  }
  return largest * scale_inv;
}

/// Stores scales row by row with the padding of `entry`.
void StorePadded(const ForeignWeight& form, std::span<const std::byte> scales,
                 const TensorEntry& entry, std::span<std::byte> out) {
  const std::size_t item = Info(entry.dtype).bits / 8;
  const MatrixShape stored = FlattenShape(entry.shape);
  const std::size_t rows = form.matrices * form.ScaleRows(), row_bytes = form.ScaleCols() * item;
  std::ranges::fill(out, std::byte{0});
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(out.data() + row * stored.cols * item, scales.data() + row * row_bytes, row_bytes);
  }
}

}  // namespace

std::optional<QuantSpec> OwnSpec(const ForeignWeight& form) {
  const bool empty = FlattenShape(form.shape).Size() == 0;  // its scale would belong to no block
  if (form.transposed || form.globals > 1 || empty) return std::nullopt;
  std::optional<QuantSpec> of_whole_tensor;
  for (const bool widens : {false, true}) {
    for (const SchemeInfo& scheme : kSchemes) {
      const auto own = FormOfScheme(scheme, form.shape);
      if (!own || !Holds(*own, form, widens)) continue;
      if (own->tiled || !form.tiled) return QuantSpec{.scheme = &scheme};
      if (!of_whole_tensor) of_whole_tensor = QuantSpec{.scheme = &scheme};
    }
  }
  return of_whole_tensor;
}

QuantSpec NeedOwnSpec(const std::string& operation, const StoredTensor& tensor) {
  const auto spec = OwnSpec(*tensor.foreign);
  if (spec) return *spec;
  throw Unsupported(
      fmt::format("{}: '{}' ({}) has no scheme with such blocks and scales; "
                  "dequantize, in Python dtype=, gives its values",
                  operation, tensor.name, FormatText(tensor)));
}

void StoreOwnBuffers(const StoredTensor& tensor, const CanonicalWeight& weight,
                     std::span<const std::span<std::byte>> out) {
  const FloatEnvironment environment;
  const QuantSpec& spec = tensor.quantized->spec;
  const bool widens =
      HoldsExponents(weight.form.scale) && spec.scheme->layout.scale_type == ScaleType::kFloat32;
  const CanonicalWeight wide = widens ? WithFp32Scales(weight) : weight;
  for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
    switch (tensor.plan[i].role) {
      case Role::kRowwiseData:
        std::ranges::copy(weight.codes, out[i].begin());
        break;
      case Role::kRowwiseScaleInv:
        StorePadded(wide.form, wide.scales, tensor.entries[i], out[i]);
        break;
      case Role::kScale:
        StoreFloat(1.0f / ScaleValue(FileDType::kF32, wide.scales, 0), out[i]);
        break;
      default:  // amax_rowwise
        StoreFloat(spec.scheme->element_bits == 4
                       ? AmaxOfGlobal(weight, spec.e4m3_max)
                       : AmaxOfCodes(weight, ScaleValue(FileDType::kF32, wide.scales, 0)),
                   out[i]);
    }
  }
}

}  // namespace narrowfloat::io
