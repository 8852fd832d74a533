// SPDX-License-Identifier: Apache-2.0
#include "tools/command.h"

namespace narrowfloat::tools {

Command AddVersion(CLI::App& app) {
  return {app.add_subcommand("version", "Print the version"), [] {
            return Result{"narrowfloat " NF_VERSION,
                          {{"name", "narrowfloat"}, {"version", NF_VERSION}}};
          }};
}

}  // namespace narrowfloat::tools
