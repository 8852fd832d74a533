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

/// The convention `narrowfloat`: the form of a quantized tensor in a safetensors file.
///
/// Each stored buffer of the tensor NAME's plan is a tensor `NAME.<role>` of exactly the planned
/// shape: codes as F8_E4M3 or F8_E5M2 (packed ones as U8), E8M0 scales as F8_E8M0, all else as F32.
/// `__metadata__` has a key `narrowfloat.NAME` whose text is the JSON object
/// {"spec": text form, "shape": [..], "dtype": "float32" | "float16" | "bfloat16"}.
/// NAME itself is a tensor of shape [0] in that dtype: a loader that expects a float tensor of that
/// name finds a wrong shape and rejects the file. Files without this tensor are read too.
namespace narrowfloat::io {

inline constexpr std::string_view kConventionName = "narrowfloat";

/// A quantized tensor's record in a file: its spec, shape and type.
struct QuantizedRecord {
  std::string name;
  QuantSpec spec;
  Shape shape;                    // of the unquantized tensor
  DType dtype = DType::kFloat32;  // of the unquantized tensor
  bool operator==(const QuantizedRecord&) const = default;
};

/// Returns the buffers that are stored: the planned buffers with memory of their own.
std::vector<BufferPlan> StoredBuffers(const QuantSpec& spec, const Shape& shape);

/// Returns the name of a stored buffer, such as "NAME.rowwise_data".
std::string BufferName(std::string_view tensor, Role role);

/// A tensor as listed for a file: plain, or quantized and made of several entries.
struct StoredTensor {
  std::string name;
  std::optional<QuantizedRecord> quantized{};
  std::vector<BufferPlan> plan{};  // of `entries`, one each, if `quantized`
  std::vector<TensorEntry>
      entries{};  // a plain tensor has one; a foreign weight has codes, scale and global
  std::optional<ForeignWeight> foreign{};
  std::vector<std::size_t>
      shards{};            // of `entries`, if some may be in other files than the first entry
  bool accessory = false;  // a part of a foreign convention that a float model does not have

  bool IsPlain() const { return !quantized && !foreign; }
  const Shape& shape() const {
    return quantized ? quantized->shape : foreign ? foreign->shape : entries.front().shape;
  }
  std::uint64_t Bytes() const;
};

/// Returns a quantized tensor as stored in this convention.
/// Errors: InvalidArgument as PlanQuantize.
StoredTensor AsStored(QuantizedRecord record);

/// Returns the format as text: "mxfp8_e4m3" and its options, "e4m3 128x128 F32" or, for a plain
/// tensor, the file's type.
std::string FormatText(const StoredTensor& tensor);

/// Contents of a file, collected before its header is written.
struct FileContents {
  std::vector<TensorEntry> tensors;
  Metadata metadata;

  void AddPlain(std::string name, FileDType dtype, Shape shape);
  /// Adds the tensors of a record. Errors: InvalidArgument as PlanQuantize.
  void AddQuantized(const QuantizedRecord& record);
  /// Adds a tensor of another file unchanged.
  void AddCopy(const StoredTensor& tensor);
};

/// Returns the tensors of a file in the order of their names; groups the buffers of quantized
/// tensors. Errors: InvalidArgument if a record cannot be read, or if one of its buffers is missing
/// or differs from the plan; `source` begins the message.
std::vector<StoredTensor> GroupTensors(const std::string& source, const Header& header);

/// The header of one file of a checkpoint; `source` begins messages about it.
struct FileHeader {
  std::string source;
  const Header* header;
};

/// Groups the tensors of all files of one checkpoint; returns a list for each file. A record may
/// describe buffers in any of the files, and several files may have the same record: programs that
/// save a model in several files write the metadata of all tensors to each. A tensor is in the list
/// of the file with its first buffer.
std::vector<std::vector<StoredTensor>> GroupTensors(std::span<const FileHeader> files);

/// Returns the metadata without this convention's keys.
Metadata WithoutOwnKeys(const Metadata& metadata);

}  // namespace narrowfloat::io
