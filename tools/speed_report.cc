// SPDX-License-Identifier: Apache-2.0
#include "tools/speed_report.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "tools/interrupt.h"
#include "tools/progress_bar.h"
#include "tools/speed/machine.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

using speed::DirectionName;
using speed::KernelSpeed;
using speed::MachineSpeed;
using speed::StreamSpeed;
using speed::VerbName;

constexpr double kBudgetSeconds = 4.8;  // five with the start and the tables

using Table = std::vector<std::vector<std::string>>;

double GigabytesPerSecond(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

std::string ThreadsText(std::size_t threads) {
  return threads == 1 ? "1 thread" : fmt::format("{} threads", threads);
}

/// Returns the row that begins with this cell: results of other numbers of threads continue it.
std::vector<std::string>& RowOf(Table& table, const std::string& name) {
  if (table.back().front() != name) table.push_back({name});
  return table.back();
}

std::string StreamTable(const std::vector<StreamSpeed>& streams) {
  Table table{{"memory, GB/s"}};
  for (const StreamSpeed& stream : streams) {
    if (stream.name == streams.front().name) table.front().push_back(ThreadsText(stream.threads));
    RowOf(table, std::string(stream.name))
        .push_back(fmt::format("{:.1f}", GigabytesPerSecond(stream.bytes, stream.seconds)));
  }
  return TableText(table, {1, 2});
}

std::string KernelName(const KernelSpeed& kernel) {
  return fmt::format("{} {} {}", VerbName(kernel.verb), kernel.scheme->name,
                     DirectionName(kernel.direction));
}

std::string KernelTable(const MachineSpeed& machine) {
  Table table{{fmt::format("{} {}", DTypeName(machine.dtype), ShapeText(machine.shape))}};
  for (const KernelSpeed& kernel : machine.kernels) {
    const std::string name = KernelName(kernel);
    if (name == KernelName(machine.kernels.front())) {
      for (const std::string& column :
           {ThreadsText(kernel.threads) + ": ms", std::string("GB/s"), std::string("share")})
        table.front().push_back(column);
    }
    auto& row = RowOf(table, name);
    row.push_back(fmt::format("{:.2f}", kernel.seconds * 1e3));
    row.push_back(fmt::format("{:.1f}", GigabytesPerSecond(kernel.bytes, kernel.seconds)));
    row.push_back(fmt::format("{:.0f}%", 100 * kernel.stream_seconds / kernel.seconds));
  }
  return TableText(table, {1, 2, 3, 4, 5, 6});
}

Json SpeedJson(const MachineSpeed& machine) {
  Json memory = Json::array(), kernels = Json::array();
  for (const StreamSpeed& stream : machine.streams) {
    memory.push_back({{"stream", stream.name},
                      {"threads", stream.threads},
                      {"gb_per_second", GigabytesPerSecond(stream.bytes, stream.seconds)}});
  }
  for (const KernelSpeed& kernel : machine.kernels) {
    kernels.push_back({{"verb", VerbName(kernel.verb)},
                       {"scheme", kernel.scheme->name},
                       {"direction", DirectionName(kernel.direction)},
                       {"threads", kernel.threads},
                       {"ms", kernel.seconds * 1e3},
                       {"gb_per_second", GigabytesPerSecond(kernel.bytes, kernel.seconds)},
                       {"share", kernel.stream_seconds / kernel.seconds}});
  }
  return {{"dtype", DTypeName(machine.dtype)},
          {"shape", machine.shape},
          {"seconds", machine.seconds},
          {"memory", memory},
          {"kernels", kernels}};
}

MachineSpeed Measure(int threads) {
  ProgressBar bar("doctor", fmt::format("measuring for {:.0f} seconds", kBudgetSeconds));
  try {
    return speed::MeasureMachine({.threads = threads}, kBudgetSeconds,
                                 [&](double share, std::string_view next) {
                                   CheckInterrupt();
                                   if (bar.IsDue()) bar.Draw(share, "measured,", next);
                                 });
  } catch (const Interrupted& error) {
    throw Interrupted(fmt::format("doctor: {}", error.what()));
  }
}

}  // namespace

Result SpeedReport(int threads) {
  const MachineSpeed machine = Measure(threads);
  return {fmt::format("{}\n{}\nshare: of the speed of a loop that moves the same bytes and does "
                      "nothing else\n",
                      StreamTable(machine.streams), KernelTable(machine)),
          SpeedJson(machine)};
}

}  // namespace narrowfloat::tools
