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

/// Kind of an option's value: determines how it is checked and completed.
enum class ValueKind { kFlag, kText, kPath, kChoice, kSuggestion };

/// One option or argument. The parser, --help, the manual, the completions and the tables of
/// docs/cli.md are generated from these rows.
struct OptionRow {
  std::string_view name;   // "--scheme", "-o,--out" or, for an argument, "IN"
  std::string_view value;  // placeholder in the usage text
  std::string_view meaning;
  ValueKind kind = ValueKind::kFlag;
  bool required = false;
  std::vector<std::string> (*choices)() = nullptr;  // all values of a kChoice; else examples
  std::string_view command = "";                    // command of the row; empty: all others
};

/// A subcommand.
struct CommandRow {
  std::string_view name, meaning;
};

/// An exit status, and its meaning.
struct ExitRow {
  ExitCode code;
  std::string_view meaning;
};

/// An environment variable that a command reads. Those of products are not here: no command
/// multiplies.
struct VariableRow {
  std::string_view name, meaning;
};

std::span<const ExitRow> ExitCodes();
std::span<const VariableRow> Variables();

/// Returns the row of an option of a command. Requires: there is one.
const OptionRow& FindOption(std::string_view command, std::string_view name);

/// Returns the options and arguments of a command except --help, in the order of their
/// addition.
std::vector<const CLI::Option*> OptionsOf(const CLI::App& command);

/// Returns the row of an option.
const OptionRow& RowOf(const CLI::App& command, const CLI::Option& option);

/// Returns the spellings of an option, such as "-o" and "--out", or of an argument, such as "IN".
std::vector<std::string> OptionNames(const CLI::Option& option);

/// Adds the subcommand with that name. Requires: it is in the table.
CLI::App* AddCommand(CLI::App& app, std::string_view name);

/// Adds an option or argument that is stored in `value`: a flag for bool, a number of at least 1
/// for int, a list for a vector. A list option may be given several times.
void AddOption(CLI::App* command, std::string_view name, bool& value);
void AddOption(CLI::App* command, std::string_view name, int& value);
void AddOption(CLI::App* command, std::string_view name, std::string& value);
void AddOption(CLI::App* command, std::string_view name, std::vector<std::string>& value);

}  // namespace narrowfloat::tools
