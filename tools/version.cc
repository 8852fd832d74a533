// SPDX-License-Identifier: Apache-2.0
#include "tools/command.h"
#include "tools/option_table.h"

namespace narrowfloat::tools {

Command AddVersion(CLI::App& app) {
  return {AddCommand(app, "version"), [] {
            return Result{"narrowfloat " NF_VERSION,
                          {{"name", "narrowfloat"}, {"version", NF_VERSION}}};
          }};
}

}  // namespace narrowfloat::tools
