// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {

/// Returns the codes of the first weight of INT8 or INT4: integers beside a scale of a wide float,
/// under the names that the convention has for FP8 and FP4. nullptr if there is no such weight.
const TensorEntry* FindIntegerCodes(const Checkpoint& checkpoint, const ConventionRow& convention);

/// Groups the tensors of a checkpoint by the names of a foreign convention: each weight becomes one
/// tensor, in the file that has its codes, under the name of the float tensor; its scales may lie
/// in other files. Errors: InvalidArgument if codes lack their scale, a scale its codes, or types
/// and shapes do not fit; Unsupported for integer codes, MXFP6, and tensors or a configuration that
/// change what weights mean; as ReadCompanion.
void ReadConvention(Checkpoint& checkpoint, const ConventionRow& convention);

/// Refuses a tensor that is copied into a file of a convention and that ReadConvention would refuse
/// there, or take for a part of a weight. `operation` begins messages. Errors: InvalidArgument;
/// Unsupported for a name of tensors that change what weights mean.
void CheckCopy(const std::string& operation, const ConventionRow& convention,
               const TensorEntry& entry);

/// Returns the type of the model's float tensors by its config.json, bfloat16 if it names none.
DType ModelDType(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
