// SPDX-License-Identifier: Apache-2.0
#include "tools/option_table.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/schemes/registry.h"
#include "tools/option_values.h"

namespace narrowfloat::tools {
namespace {

using Names = std::vector<std::string>;

Names Schemes() {
  Names names;
  for (const SchemeInfo& scheme : kSchemes) names.emplace_back(scheme.name);
  return names;
}

constexpr CommandRow kCommands[] = {
    {"inspect", "lists tensors, formats and sizes, and names the convention that wrote them"},
    {"quantize", "float checkpoint to quantized checkpoint"},
    {"dequantize", "quantized checkpoint to float checkpoint"},
    {"convert", "quantized checkpoint to another convention, with the same codes"},
    {"requantize",
     "MXFP4 or block FP8 to block FP8 with fp32 or power-of-two scales; says what is lost"},
    {"diff", "which tensors differ, in bytes and in values; exit code 1 if any do"},
    {"check",
     "damage, missing parts, NaN, bad scales, saturated blocks; exit code 1 if there is a finding"},
    {"report",
     "what each scheme would do to each tensor: size, SQNR, largest error, underflow, saturation, "
     "histograms, on one HTML page"},
    {"schemes", "lists the scaling schemes that are built in"},
    {"version", "prints the version"},
    {"doctor", "says what this machine will run; with --speed, how fast"},
    {"manual", "prints the manual page"},
    {"completion", "prints the script that completes commands and options in a shell"},
};

constexpr ValueKind kPath = ValueKind::kPath, kText = ValueKind::kText, kFlag = ValueKind::kFlag;
constexpr ValueKind kChoice = ValueKind::kChoice, kSuggestion = ValueKind::kSuggestion;

constexpr OptionRow kOptions[] = {
    {"PATH", "PATH", "file, index file or folder", kPath, true},
    {"IN", "IN", "file, index file or folder", kPath, true},
    {"OUT", "OUT", "file, or folder if IN is one", kPath, true},
    {"A", "A", "file, index file or folder", kPath, true},
    {"B", "B", "file, index file or folder", kPath, true},
    {"SHELL", "SHELL", "the shell", kChoice, true, NamesIn<kShells>},
    {"--scheme", "S", "the scheme, with its options after a colon", kSuggestion, true, Schemes},
    {"--scheme", "S", "tries this scheme alone; may be given often", kSuggestion, false, Schemes,
     "report"},
    {"--include", "GLOB", "quantize tensors whose name matches, re:REGEX too; may be given often",
     kText},
    {"--exclude", "GLOB", "leave them as they are; the last match decides", kText},
    {"--dry-run", "", "list what would happen to each tensor, write nothing", kFlag},
    {"--convention", "C",
     "how the result is laid out: narrowfloat by default, or a convention that convert writes",
     kSuggestion, false, io::WrittenConventions},
    {"--from", "C", "convention of the checkpoint that is read; found from its files by default",
     kSuggestion, false, io::ReadConventions},
    {"--from-a", "C", "convention of A; found from its files by default", kSuggestion, false,
     io::ReadConventions},
    {"--from-b", "C", "convention of B; found from its files by default", kSuggestion, false,
     io::ReadConventions},
    {"--to", "C", "convention of OUT", kSuggestion, true, io::WrittenConventions},
    {"--to", "C", "convention of OUT; fp8 by default", kSuggestion, false, io::OtherConventions,
     "requantize"},
    {"--scale-format", "F", "scales of OUT: ue8m0 or f32", kChoice, true, NamesIn<kScaleFormats>},
    {"--leave-misfits", "",
     "keep MXFP4 tensors that block FP8 cannot hold without loss; needs --to deepseek-v4, "
     "which mixes formats",
     kFlag},
    {"--dtype", "T",
     "bf16, f16 or f32: type of what was quantized, other tensors keep theirs; by default the one "
     "recorded, or config.json's for other conventions",
     kChoice, false, NamesIn<kFloatTypes>},
    {"--overwrite", "",
     "replace files that exist in OUT, and remove those that another checkpoint left", kFlag},
    {"--overwrite", "", "replace the page if it exists", kFlag, false, nullptr, "report"},
    {"--threads", "N",
     "threads; NF_NUM_THREADS or all usable ones by default. No byte depends on it", kText},
    {"--part", "i/N", "one share of the files, i from 1 to N", kText},
    {"-o,--out", "PAGE", "the page", kPath, true},
    {"--speed", "", "measure the memory and every scheme, for five seconds", kFlag},
    {"--json", "", "one JSON object on standard output", kFlag},
};

constexpr ExitRow kExitCodes[] = {
    {ExitCode::kFine, "fine"},
    {ExitCode::kFinding, "a finding (of commands that look for some)"},
    {ExitCode::kBadInput,
     "bad input or usage: no such file, a damaged file or one that contradicts itself, an unknown "
     "scheme or option"},
    {ExitCode::kUnsupported,
     "unsupported here: a backend that this machine lacks, a convention that this build does not "
     "read"},
    {ExitCode::kFailure, "the disk or a device failed"},
    {ExitCode::kInterrupted,
     "interrupted (SIGINT, SIGTERM, SIGHUP): unfinished files are gone, finished ones stay"},
    {ExitCode::kPipeClosed,
     "the reader of standard output closed its end of the pipe (narrowfloat inspect ... | head)"},
};

constexpr VariableRow kVariables[] = {
    {"NF_NUM_THREADS", "number of threads; --threads takes precedence"},
    {"NF_FORCE_BACKEND",
     "pins the kernels to one of those that doctor lists; another name is an error (exit 3)"},
};

/// Returns the message for an invalid count; an empty text for a valid one.
std::string CountError(const std::string& value) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  int number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error == std::errc{} && stop == end && number >= 1) return "";
  return fmt::format("must be an integer from 1 to {}, got {}", kLargest, value);
}

/// Returns the message for an empty path; an empty text for any other path.
std::string PathError(const std::string& value) {
  return value.empty() ? "the path must not be empty" : "";
}

/// Adds an option or argument with a value, by its row.
template <class T>
CLI::Option* AddValue(CLI::App* command, std::string_view name, T& value) {
  const OptionRow& row = FindOption(command->get_name(), name);
  CLI::Option* option = command->add_option(std::string(row.name), value, std::string(row.meaning));
  option->required(row.required);
  // An argument is its own placeholder.
  option->type_name(row.name == row.value ? "" : std::string(row.value));
  if (row.kind == ValueKind::kChoice) option->check(CLI::IsMember(row.choices()));
  if (row.kind == ValueKind::kPath) option->check(PathError);
  return option;
}

}  // namespace

std::span<const ExitRow> ExitCodes() {
  return kExitCodes;
}

std::span<const VariableRow> Variables() {
  return kVariables;
}

const OptionRow& FindOption(std::string_view command, std::string_view name) {
  const auto find = [&](std::string_view of) {
    return std::ranges::find_if(kOptions, [&](const OptionRow& row) {
      return row.command == of && (row.name == name || row.name.ends_with("," + std::string(name)));
    });
  };
  const OptionRow* row = find(command);
  if (row == std::end(kOptions)) row = find("");
  if (row == std::end(kOptions))
    throw std::logic_error("option_table: no row " + std::string(name));
  return *row;
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& command) {
  std::vector<const CLI::Option*> options = command.get_options();
  std::erase(options, command.get_help_ptr());
  return options;
}

const OptionRow& RowOf(const CLI::App& command, const CLI::Option& option) {
  return FindOption(command.get_name(), OptionNames(option).back());
}

std::vector<std::string> OptionNames(const CLI::Option& option) {
  std::vector<std::string> names;
  if (option.get_positional()) return {option.get_name()};
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

CLI::App* AddCommand(CLI::App& app, std::string_view name) {
  const CommandRow* row = std::ranges::find(kCommands, name, &CommandRow::name);
  if (row == std::end(kCommands)) {
    throw std::logic_error("option_table: no row " + std::string(name));
  }
  return app.add_subcommand(std::string(row->name), std::string(row->meaning));
}

void AddOption(CLI::App* command, std::string_view name, bool& value) {
  const OptionRow& row = FindOption(command->get_name(), name);
  command->add_flag(std::string(row.name), value, std::string(row.meaning));
}

void AddOption(CLI::App* command, std::string_view name, int& value) {
  AddValue(command, name, value)->check(CountError);
}

void AddOption(CLI::App* command, std::string_view name, std::string& value) {
  AddValue(command, name, value);
}

void AddOption(CLI::App* command, std::string_view name, std::vector<std::string>& value) {
  CLI::Option* option = AddValue(command, name, value);
  option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  // By default an option of a vector also takes the arguments after its value, and splits a value
  // in brackets, which may be a pattern, at commas.
  option->allow_extra_args(false);
}

}  // namespace narrowfloat::tools
