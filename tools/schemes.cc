// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/file_dtype.h"
#include "narrowfloat/schemes/registry.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/quant_spec.h"
#include "tools/command.h"
#include "tools/option_table.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

std::string BlockText(const BlockShape& block) {
  return block == kWholeTensor ? "tensor" : fmt::format("{}x{}", block.rows, block.cols);
}

Result Run() {
  std::vector<std::vector<std::string>> rows = {
      {"name", "id", "element", "block", "scale", "options"}};
  Json schemes = Json::array();
  for (const SchemeInfo& scheme : kSchemes) {
    const std::string_view scale = io::Info(io::FileDTypeOfScales(scheme.layout.scale_type)).name;
    std::vector<std::string_view> options = OptionKeys(scheme);
    options.insert(options.end(), {"columnwise", "rowwise"});  // every scheme has these
    std::ranges::sort(options);
    rows.push_back({std::string(scheme.name), fmt::format("{:#06x}", scheme.id),
                    std::string(scheme.element), BlockText(scheme.block), std::string(scale),
                    fmt::format("{}", fmt::join(options, " "))});
    schemes.push_back({{"name", scheme.name},
                       {"id", scheme.id},
                       {"element", scheme.element},
                       {"element_bits", scheme.element_bits},
                       {"block", BlockText(scheme.block)},
                       {"scale", scale},
                       {"options", options}});
  }
  return {TableText(rows, {}), {{"schemes", schemes}}};
}

}  // namespace

Command AddSchemes(CLI::App& app) {
  return {AddCommand(app, "schemes"), Run};
}

}  // namespace narrowfloat::tools
