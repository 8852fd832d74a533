// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {

/// Returns the codes of the first INT8 or INT4 weight: integers with a scale of a wide float beside
/// them, under the convention's names for FP8 and FP4. Returns nullptr if there is no such weight.
const TensorEntry* FindIntegerCodes(const Checkpoint& checkpoint, const ConventionRow& convention);

/// Groups the tensors of a checkpoint by the names of a foreign convention. Each weight becomes one
/// tensor with the name of the float tensor, in the file with its codes; its scales may be in other
/// files. Errors: InvalidArgument if codes lack their scale, a scale lacks its codes, or types and
/// shapes do not match; Unsupported for integer codes, MXFP6, and tensors or a configuration that
/// change the meaning of weights; as ReadCompanion. Messages about missing parts give `evidence` of
/// the convention; it is empty if the caller has named it.
void ReadConvention(Checkpoint& checkpoint, const ConventionRow& convention,
                    const std::string& evidence);

/// Returns the block size that config.json states for all weights; nullopt if it states none.
/// Errors: as ReadConvention.
std::optional<BlockShape> StatedBlock(const Checkpoint& checkpoint);

/// Checks a plain tensor that is copied to a file of a convention. Errors: InvalidArgument if
/// ReadConvention would reject it or treat it as a part of a weight; Unsupported for a name of
/// tensors that change the meaning of weights. `operation` begins messages.
void CheckCopy(const std::string& operation, const ConventionRow& convention,
               const TensorEntry& entry);

/// Returns the type of the model's float tensors in config.json; bfloat16 if it has none.
DType ModelDType(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
