// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "narrowfloat/io/convention_writer.h"
#include "narrowfloat/io/detect_convention.h"

namespace narrowfloat::tools {

/// Returns `convention`. If the files do not name it, prints its reason to standard error.
io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention);

/// Checks that no tensor of a checkpoint is quantized. Errors: InvalidArgument.
void CheckIsFloat(const std::string& verb, const io::Checkpoint& checkpoint);

/// Prints notes on the result to standard error, one per line.
void SayNotes(const std::string& verb, const std::vector<std::string>& notes);

/// Prints each of `found` as SayNotes, and appends it to `notes`.
void AddNotes(const std::string& verb, const std::vector<std::string>& found,
              std::vector<std::string>& notes);

/// Returns the notes of a job: the reason of `convention` if the files do not name it, then
/// `notes`.
std::vector<std::string> NotesOf(const io::DetectedConvention& convention,
                                 std::vector<std::string> notes);

}  // namespace narrowfloat::tools
