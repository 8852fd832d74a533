// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/own_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

bool IsE8M0(FileDType dtype) {
  return dtype == FileDType::kF8E8M0 || dtype == FileDType::kU8;
}

/// How a weight's scales lie, whatever their type.
bool SameBlocks(const ForeignWeight& a, const ForeignWeight& b) {
  return a.matrices == b.matrices && a.rows == b.rows && a.cols == b.cols && a.block == b.block;
}

bool SameCodes(FileDType a, FileDType b, bool packed) {
  return packed || a == b;
}

/// Returns the form of a scheme's tensors of that shape; nullopt if other conventions have none.
std::optional<ForeignWeight> FormOfScheme(const SchemeInfo& scheme, const Shape& shape) {
  try {
    return FormOf(AsStored({"", {.scheme = &scheme}, shape, DType::kFloat32}));
  } catch (const Unsupported&) {
    return std::nullopt;
  } catch (const InvalidArgument&) {  // the shape does not suit the blocks
    return std::nullopt;
  }
}

bool Holds(const ForeignWeight& own, const ForeignWeight& form, bool widens) {
  const bool scales =
      own.scale == form.scale || (IsE8M0(own.scale) && IsE8M0(form.scale)) ||
      (own.scale == FileDType::kF32 && (WideFloat(form.scale) || (widens && IsE8M0(form.scale))));
  return own.Packed() == form.Packed() && SameCodes(own.codes, form.codes, own.Packed()) &&
         SameBlocks(own, form) && scales;
}

float ReadFloat(const std::byte* bytes) {
  float value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

std::vector<std::byte> FloatBytes(float value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// Returns the amax that gives the scale of the whole tensor, or the nearest one: an amax is
/// multiplied by a constant and rounded, so that some scales lie between two results.
float AmaxOfGlobal(const CanonicalWeight& weight, float largest) {
  float global = weight.global;
  if (weight.form.global == GlobalScale::kDivides) global = global == 0 ? 0.0f : 1.0f / global;
  const float nearest = global * largest;
  for (const float amax :
       {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, INFINITY)}) {
    if (amax * (1.0f / largest) == global) return amax;
  }
  return nearest;
}

/// Returns the largest magnitude of per-tensor FP8.
float AmaxOfCodes(const CanonicalWeight& weight, float scale_inv) {
  float largest = 0;
  for (const std::byte code : weight.codes) {
    const auto bits = std::to_integer<std::uint32_t>(code);
    const float value =
        weight.form.codes == FileDType::kF8E4M3 ? Decode<E4M3>(bits) : Decode<E5M2>(bits);
    largest = std::max(largest, std::abs(value));  // ignores NaN
  }
  return largest * scale_inv;
}

/// Returns scales with the padding of `entry`, row by row.
std::vector<std::byte> Padded(const ForeignWeight& form, std::span<const std::byte> scales,
                              const TensorEntry& entry) {
  const std::size_t item = Info(entry.dtype).bits / 8;
  const MatrixShape stored = FlattenShape(entry.shape);
  const std::size_t rows = form.matrices * form.ScaleRows(), row_bytes = form.ScaleCols() * item;
  std::vector<std::byte> out(stored.Size() * item);
  for (std::size_t row = 0; row < rows; ++row) {
    std::memcpy(out.data() + row * stored.cols * item, scales.data() + row * row_bytes, row_bytes);
  }
  return out;
}

}  // namespace

std::optional<QuantSpec> OwnSpec(const ForeignWeight& form) {
  if (form.transposed) return std::nullopt;
  for (const bool widens : {false, true}) {
    for (const SchemeInfo& scheme : kSchemes) {
      const auto own = FormOfScheme(scheme, form.shape);
      if (own && Holds(*own, form, widens)) return QuantSpec{.scheme = &scheme};
    }
  }
  return std::nullopt;
}

std::vector<std::vector<std::byte>> OwnBuffers(const StoredTensor& tensor,
                                               const CanonicalWeight& weight) {
  const QuantSpec& spec = tensor.quantized->spec;
  const bool widens =
      IsE8M0(weight.form.scale) && spec.scheme->layout.scale_type == ScaleType::kFloat32;
  const CanonicalWeight wide = widens ? WithFp32Scales(weight) : weight;
  std::vector<std::vector<std::byte>> buffers;
  for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
    switch (tensor.plan[i].role) {
      case Role::kRowwiseData:
        buffers.emplace_back(weight.codes.begin(), weight.codes.end());
        break;
      case Role::kRowwiseScaleInv:
        buffers.push_back(Padded(wide.form, wide.scales, tensor.entries[i]));
        break;
      case Role::kScale:
        buffers.push_back(FloatBytes(1.0f / ReadFloat(wide.scales.data())));
        break;
      default:  // amax_rowwise
        buffers.push_back(FloatBytes(spec.scheme->element_bits == 4
                                         ? AmaxOfGlobal(weight, kMaxValue<E2M1> * spec.e4m3_max)
                                         : AmaxOfCodes(weight, ReadFloat(wide.scales.data()))));
    }
  }
  return buffers;
}

}  // namespace narrowfloat::io
