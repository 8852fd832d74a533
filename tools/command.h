// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;  // not included, because CLI11 takes ten seconds to compile
}

namespace narrowfloat::tools {

using Json = nlohmann::ordered_json;

/// Exit status of the process.
enum class ExitCode : int {
  kFine = 0,
  kFinding = 1,
  kBadInput = 2,
  kUnsupported = 3,
  kFailure = 4,
  kPipeClosed = 141,  // as of a program that SIGPIPE ended
  kInterrupted = 130,
};

/// Result of a command: a text for people and an object for programs; one of them is printed.
struct Result {
  std::string text;
  Json json;
  ExitCode code = ExitCode::kFine;
};

/// A subcommand, and the function that runs it after its arguments are parsed.
struct Command {
  CLI::App* app;
  std::function<Result()> run;
};

// Each adds one subcommand, and is defined in the file with the subcommand's name.
Command AddInspect(CLI::App& app);
Command AddQuantize(CLI::App& app);
Command AddDequantize(CLI::App& app);
Command AddConvert(CLI::App& app);
Command AddRequantize(CLI::App& app);
Command AddCheck(CLI::App& app);
Command AddDiff(CLI::App& app);
Command AddReport(CLI::App& app);
Command AddSchemes(CLI::App& app);
Command AddVersion(CLI::App& app);
Command AddDoctor(CLI::App& app);
Command AddManual(CLI::App& app);
Command AddCompletion(CLI::App& app);

}  // namespace narrowfloat::tools
