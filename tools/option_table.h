// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"

namespace CLI {
class Option;
}

namespace narrowfloat::tools {

/// Kind of an option's value: decides how it is checked and completed.
enum class ValueKind { kFlag, kText, kPath, kChoice, kSuggestion };

/// One option or argument. The parser, --help, the manual, the completions and the tables of
/// docs/cli.md are made of these rows.
struct OptionRow {
  std::string_view name;   // "--scheme", "-o,--out" or, of an argument, "IN"
  std::string_view value;  // its placeholder in the usage text
  std::string_view meaning;
  ValueKind kind = ValueKind::kFlag;
  bool required = false;
  std::vector<std::string> (*choices)() = nullptr;  // all that a kChoice takes; some of others
  std::string_view command = "";                    // that the row is for; empty: all others
};

/// A subcommand.
struct CommandRow {
  std::string_view name, meaning;
};

/// An exit status, and when it is returned.
struct ExitRow {
  ExitCode code;
  std::string_view meaning;
};

/// An environment variable that is read.
struct VariableRow {
  std::string_view name, meaning;
};

std::span<const ExitRow> ExitCodes();
std::span<const VariableRow> Variables();

/// Returns the row of an option of a command. Requires: there is one.
const OptionRow& FindOption(std::string_view command, std::string_view name);

/// Returns the options and arguments of a command but --help, in the order in which they were
/// added.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& command);

/// Returns the row that an option was made of.
const OptionRow& RowOf(const CLI::App& command, const CLI::Option& option);

/// Returns the spellings of an option: "-o", "--out"; of an argument: "IN".
std::vector<std::string> OptionNames(const CLI::Option& option);

/// Adds the subcommand of that name. Requires: it is in the table.
CLI::App* AddCommand(CLI::App& app, std::string_view name);

/// Adds an option or argument whose value goes to `value`: a flag for bool, a number of at least 1
/// for int, a list for a vector, which may be given often.
void AddOption(CLI::App* command, std::string_view name, bool& value);
void AddOption(CLI::App* command, std::string_view name, int& value);
void AddOption(CLI::App* command, std::string_view name, std::string& value);
void AddOption(CLI::App* command, std::string_view name, std::vector<std::string>& value);

}  // namespace narrowfloat::tools
