// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"
#include "tools/command.h"
#include "tools/option_table.h"
#include "tools/speed_report.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

/// Returns the model name in /proc/cpuinfo, or "unknown".
std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

/// Returns the selected word of "always [madvise] never", or "unavailable".
std::string HugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  std::getline(file, text);
  const std::size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos || close == std::string::npos) return "unavailable";
  return text.substr(open + 1, close - open - 1);
}

struct DoctorOptions {
  bool speed = false;
  int threads = 0;
};

Result Run(const DoctorOptions& options) {
  const KernelTable& active = ActiveKernels();
  std::vector<std::string_view> kernels;
  for (const KernelTable* table : AvailableKernels()) kernels.push_back(table->name);
  const char* forced = std::getenv("NF_FORCE_BACKEND");
  const std::size_t threads = ThreadCount({.threads = options.threads});
  const std::string cpu = CpuName(), huge_pages = HugePages();
  const std::size_t cpus = UsableCpus();
  const std::vector<std::vector<std::string>> rows = {
      {"version", NF_VERSION},
      {"cpu", fmt::format("{}, {} usable", cpu, cpus)},
      {"kernels", fmt::format("{}", fmt::join(kernels, " "))},
      {"active", std::string(active.name)},
      {"NF_FORCE_BACKEND", forced == nullptr ? "not set" : forced},
      {"threads", fmt::format("{}", threads)},
      {"huge pages", huge_pages},
  };
  Result result{TableText(rows, {}),
                {{"version", NF_VERSION},
                 {"cpu", cpu},
                 {"cpus", cpus},
                 {"kernels", kernels},
                 {"active", active.name},
                 {"force_backend", forced == nullptr ? Json(nullptr) : Json(forced)},
                 {"threads", threads},
                 {"huge_pages", huge_pages}}};
  if (options.speed) {
    const Result speed = SpeedReport(options.threads);
    result.text += "\n" + speed.text;
    result.json["speed"] = speed.json;
  }
  return result;
}

}  // namespace

Command AddDoctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = AddCommand(app, "doctor");
  AddOption(command, "--speed", options->speed);
  AddOption(command, "--threads", options->threads);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
