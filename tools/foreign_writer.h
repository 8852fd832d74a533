// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/convention_writer.h"
#include "tools/companions.h"
#include "tools/job.h"

namespace narrowfloat::tools {

/// Writes quantized weights in another convention, and the configuration that its owner reads.
class ForeignWriter : public io::ConventionWriter {
 public:
  using ConventionWriter::ConventionWriter;

  /// The configuration of the result. Modules of the matrices that `rewriter` does not take, and a
  /// tied output head, are named as not quantized.
  Companions Configuration(const io::Checkpoint& in, const TensorRewriter& rewriter) const;
};

}  // namespace narrowfloat::tools
