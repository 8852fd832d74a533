// SPDX-License-Identifier: Apache-2.0
#include "tools/assumption.h"

#include <fmt/format.h>

#include "narrowfloat/tensor/error.h"
#include "tools/standard_error.h"
#include "tools/text.h"

namespace narrowfloat::tools {

io::DetectedConvention SayAssumption(const std::string& verb, io::DetectedConvention convention) {
  if (convention.assumed) PrintToStderr("{}: {}\n", verb, Escaped(convention.reason));
  return convention;
}

void CheckIsFloat(const std::string& verb, const io::Checkpoint& checkpoint) {
  const io::DetectedConvention convention = io::DetectConvention(checkpoint);
  if (convention.detection == io::Detection::kPlain) return;
  if (!convention.stale.empty()) {
    throw InvalidArgument(fmt::format("{}: IN must be a float checkpoint: {}: {}", verb,
                                      checkpoint.path().string(), convention.stale));
  }
  throw InvalidArgument(
      fmt::format("{}: IN must be a float checkpoint, {} is already quantized as '{}' ({})", verb,
                  checkpoint.path().string(), convention.name, convention.reason));
}

void SayNotes(const std::string& verb, const std::vector<std::string>& notes) {
  for (const std::string& note : notes) PrintToStderr("{}: {}\n", verb, Escaped(note));
}

void AddNotes(const std::string& verb, const std::vector<std::string>& found,
              std::vector<std::string>& notes) {
  SayNotes(verb, found);
  notes.insert(notes.end(), found.begin(), found.end());
}

std::vector<std::string> NotesOf(const io::DetectedConvention& convention,
                                 std::vector<std::string> notes) {
  if (convention.assumed) notes.insert(notes.begin(), convention.reason);
  return notes;
}

}  // namespace narrowfloat::tools
