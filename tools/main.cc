// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/error.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/option_table.h"
#include "tools/standard_error.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

/// Thrown if the reader of standard output closed the pipe, as `head` does: not a failure.
class ReaderLeft {};

/// Writes a text and ends its line. (It may take half of the memory.) Errors: IoError, ReaderLeft.
void PrintToStdout(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
                       (text.ends_with('\n') || std::fputc('\n', stdout) != EOF) &&
                       std::fflush(stdout) == 0;
  if (written) return;
  if (errno == EPIPE) throw ReaderLeft();
  throw IoError(fmt::format("write: standard output, {}", std::strerror(errno)));
}

ExitCode PrintError(bool as_json, std::string_view kind, const std::string& message,
                    ExitCode code) {
  PrintToStderr("narrowfloat: {}\n", Escaped(message));
  if (as_json) {
    const Json object = {{"error", {{"kind", kind}, {"message", message}}},
                         {"exit_code", static_cast<int>(code)}};
    try {
      PrintToStdout(object.dump(2, ' ', false, Json::error_handler_t::replace));
    } catch (const IoError&) {
      return code;  // reports only the first error
    } catch (const ReaderLeft&) {
      return code;
    }
  }
  return code;
}

/// Runs a command so that a signal is noted, and ends it where it calls CheckInterrupt.
Result RunInterruptible(const std::function<Result()>& run) {
  const InterruptScope interrupts;  // not while the result is printed, which may block
  return run();
}

ExitCode Execute(const std::function<Result()>& run, bool as_json) {
  try {
    const Result result = RunInterruptible(run);
    PrintToStdout(as_json ? result.json.dump(2, ' ', false, Json::error_handler_t::replace)
                          : result.text);
    return result.code;
  } catch (const ReaderLeft&) {
    return ExitCode::kPipeClosed;
  } catch (const Interrupted& error) {
    return PrintError(as_json, "Interrupted", error.what(), ExitCode::kInterrupted);
  } catch (const InvalidArgument& error) {
    return PrintError(as_json, "InvalidArgument", error.what(), ExitCode::kBadInput);
  } catch (const Unsupported& error) {
    return PrintError(as_json, "Unsupported", error.what(), ExitCode::kUnsupported);
  } catch (const DeviceError& error) {
    return PrintError(as_json, "DeviceError", error.what(), ExitCode::kFailure);
  } catch (const IoError& error) {
    return PrintError(as_json, "IoError", error.what(), ExitCode::kFailure);
  } catch (const std::filesystem::filesystem_error& error) {
    const std::string message =
        fmt::format("access: {}, {}", error.path1().string(), error.code().message());
    return PrintError(as_json, "IoError", message, ExitCode::kFailure);
  } catch (const std::bad_alloc&) {
    return PrintError(as_json, "OutOfMemory", "not enough memory for the largest tensor",
                      ExitCode::kFailure);
  } catch (const std::exception& error) {  // a defect of this program
    return PrintError(as_json, "Internal", error.what(), ExitCode::kFailure);
  }
}

bool HasFlag(int argc, char** argv, std::string_view flag) {
  for (int i = 1; i < argc; ++i) {
    if (argv[i] == flag) return true;
  }
  return false;
}

std::string ExitCodesText() {
  std::string text = "Exit codes:\n";
  for (const ExitRow& row : ExitCodes())
    text += fmt::format("  {:<4} {}\n", static_cast<int>(row.code), row.meaning);
  return text;
}

/// Returns the first argument if it is neither a command nor an option; else an empty text.
std::string UnknownCommand(int argc, char** argv, const std::vector<Command>& commands) {
  const std::string_view word = argc > 1 ? argv[1] : "-";
  const bool known = std::ranges::any_of(
      commands, [&](const Command& command) { return command.app->get_name() == word; });
  return known || word.starts_with('-') ? "" : std::string(word);
}

/// Opens the standard streams that the caller closed; every use of them then fails. Otherwise a
/// file that is opened later would get their number and receive messages.
void OccupyClosedStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int flags = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", flags) != fd) return;  // the lowest free number is `fd`
  }
}

/// Raises the limit of open files to the system's maximum: a checkpoint may have a thousand files,
/// which are open at the same time.
void RaiseFileLimit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

ExitCode Main(int argc, char** argv) {
  CLI::App app{
      "Quantized tensors in narrow floats, byte for byte as TransformerEngine makes them.\n"
      "Results go to standard output, progress to standard error.",
      "narrowfloat"};
  app.footer(ExitCodesText());
  app.set_version_flag("--version", "narrowfloat " NF_VERSION);
  app.require_subcommand(1);
  const std::vector<Command> commands = {
      AddInspect(app), AddQuantize(app), AddDequantize(app), AddConvert(app), AddRequantize(app),
      AddDiff(app),    AddCheck(app),    AddReport(app),     AddSchemes(app), AddVersion(app),
      AddDoctor(app),  AddManual(app),   AddCompletion(app)};
  bool as_json = false;
  for (const Command& command : commands) {
    AddOption(command.app, "--json", as_json);
  }
  const std::string unknown = UnknownCommand(argc, argv, commands);
  if (!unknown.empty()) {
    return PrintError(HasFlag(argc, argv, "--json"), "Usage",
                      fmt::format("unknown command '{}' (narrowfloat --help)", unknown),
                      ExitCode::kBadInput);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::ostringstream text;
    app.exit(help, text, text);
    return Execute([&] { return Result{text.str(), {}}; }, false);
  } catch (const CLI::ParseError& error) {
    return PrintError(HasFlag(argc, argv, "--json"), "Usage",
                      fmt::format("{} (narrowfloat --help)", error.what()), ExitCode::kBadInput);
  }
  // The parser requires one command.
  const auto command =
      std::ranges::find_if(commands, [](const Command& c) { return c.app->parsed(); });
  return Execute(command->run, as_json);
}

}  // namespace

}  // namespace narrowfloat::tools

int main(int argc, char** argv) {
  narrowfloat::tools::OccupyClosedStreams();
  narrowfloat::tools::RaiseFileLimit();
  // A closed pipe is then an error of write. For standard output it ends the program with its own
  // exit status; for standard error it is ignored.
  std::signal(SIGPIPE, SIG_IGN);
  // A file size limit is then an error of write with a cleanup, and does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  return static_cast<int>(narrowfloat::tools::Main(argc, argv));
}
