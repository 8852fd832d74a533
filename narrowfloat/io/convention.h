// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/foreign_weight.h"
#include "narrowfloat/io/safetensors_header.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/quant_spec.h"

/// The convention `narrowfloat`: how a quantized tensor stands in a safetensors file.
///
/// Each stored buffer of the tensor NAME's plan is a tensor `NAME.<role>` of exactly the planned
/// shape: codes as F8_E4M3 or F8_E5M2 (packed ones as U8), E8M0 scales as F8_E8M0, all else as F32.
/// `__metadata__` has a key `narrowfloat.NAME` whose text is the JSON object
/// {"spec": text form, "shape": [..], "dtype": "float32" | "float16" | "bfloat16"}.
/// NAME itself is a tensor of shape [0] in that dtype: a loader that looks for a float tensor of
/// that name finds a wrong shape and refuses the file. Files without it are read too.
namespace narrowfloat::io {

inline constexpr std::string_view kConventionName = "narrowfloat";

/// A quantized tensor's record in a file: its spec, shape and type.
struct QuantizedRecord {
  std::string name;
  QuantSpec spec;
  Shape shape;                    // of the tensor that was quantized
  DType dtype = DType::kFloat32;  // of the same
  bool operator==(const QuantizedRecord&) const = default;
};

/// Returns the buffers that are stored: those of the plan that have memory of their own.
std::vector<BufferPlan> StoredBuffers(const QuantSpec& spec, const Shape& shape);

/// Returns the name of a stored buffer, such as "NAME.rowwise_data".
std::string BufferName(std::string_view tensor, Role role);

/// A tensor as a file lists it: plain, or quantized and made of several entries.
struct StoredTensor {
  std::string name;
  std::optional<QuantizedRecord> quantized{};
  std::vector<BufferPlan> plan{};  // of `entries`, one each, if `quantized`
  std::vector<TensorEntry>
      entries{};  // a plain tensor has one; a foreign weight codes, scale, global
  std::optional<ForeignWeight> foreign{};
  std::vector<std::size_t>
      shards{};            // of `entries`, if they may lie in other files than the tensor's
  bool accessory = false;  // a part of a foreign convention that a float model lacks

  bool IsPlain() const { return !quantized && !foreign; }
  const Shape& shape() const {
    return quantized ? quantized->shape : foreign ? foreign->shape : entries.front().shape;
  }
  std::uint64_t Bytes() const;
};

/// Returns a quantized tensor as this convention stores it.
/// Errors: InvalidArgument as PlanQuantize.
StoredTensor AsStored(QuantizedRecord record);

/// Returns the format as text: "mxfp8_e4m3" and its options, "e4m3 128x128 F32" or, of a plain
/// tensor, the file's type.
std::string FormatText(const StoredTensor& tensor);

/// Contents of a file, collected before its header can be written.
struct FileContents {
  std::vector<TensorEntry> tensors;
  Metadata metadata;

  void AddPlain(std::string name, FileDType dtype, Shape shape);
  /// Errors: InvalidArgument as PlanQuantize.
  void AddQuantized(const QuantizedRecord& record);
  /// Adds a tensor of another file as it stands there.
  void AddCopy(const StoredTensor& tensor);
};

/// Returns the tensors of a file in the order of their names; the buffers of a quantized one are
/// grouped. Errors: InvalidArgument if a record cannot be read, or a buffer that it describes is
/// missing or differs from the plan; `source` begins the message.
std::vector<StoredTensor> GroupTensors(const std::string& source, const Header& header);

/// The header of one file of a checkpoint; `source` begins messages about it.
struct FileHeader {
  std::string source;
  const Header* header;
};

/// Groups the tensors of all files of one checkpoint; returns a list for each file. A record may
/// describe buffers in any of them, and several files may have the same record: programs that save
/// a model in several files give all of them the metadata of all tensors. A tensor is in the list
/// of the file that has its first buffer.
std::vector<std::vector<StoredTensor>> GroupTensors(std::span<const FileHeader> files);

/// Returns the metadata without this convention's keys.
Metadata WithoutOwnKeys(const Metadata& metadata);

}  // namespace narrowfloat::io
