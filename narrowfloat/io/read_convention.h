// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"

namespace narrowfloat::io {

/// Groups the tensors of a checkpoint by the names of a foreign convention: each weight becomes one
/// tensor, in the file that has its codes, under the name of the float tensor; its scales may lie
/// in other files. Errors: InvalidArgument if codes lack their scale, a scale its codes, or types
/// and shapes do not fit; as ReadCompanion.
void ReadConvention(Checkpoint& checkpoint, const ConventionRow& convention);

/// Returns the type of the model's float tensors by its config.json, bfloat16 if it names none.
DType ModelDType(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
