// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::tools {

/// Files beside the tensors that the output gets with another text than the input's; without a text
/// it does not get the file.
using Companions = std::map<std::string, std::optional<std::string>>;

/// Contents for a model without quantized tensors: config.json without its quantization_config,
/// and no file of ModelOpt's. Errors: InvalidArgument if a file is damaged; IoError.
Companions PlainCompanions(const io::Checkpoint& in);

/// config.json with this quantization_config (JSON text), and ModelOpt's file with `owner_config`
/// if that is not empty. A folder without config.json gets none. Errors: as PlainCompanions.
Companions QuantizedCompanions(const io::Checkpoint& in, const std::string& quantization_config,
                               const std::string& owner_config = "");

}  // namespace narrowfloat::tools
