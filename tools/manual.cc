// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/option_table.h"

namespace narrowfloat::tools {
namespace {

/// Returns `text` escaped for roff: no line becomes a request, and no hyphen a typographic one.
std::string Roff(std::string_view text) {
  std::string out = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

bool IsArgument(const CLI::Option& option) {
  return option.get_positional();
}

/// Returns an option in roff: "\fB\-\-scheme\fR \fIS\fR".
std::string RoffName(const CLI::Option& option) {
  if (IsArgument(option)) return fmt::format("\\fI{}\\fR", Roff(option.get_name()));
  const std::string value = option.get_type_name();
  std::string names;
  for (const std::string& name : OptionNames(option)) {
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", Roff(name));
  }
  return value.empty() ? names : fmt::format("{} \\fI{}\\fR", names, Roff(value));
}

std::string RoffTerm(std::string_view term, const std::string& meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, meaning);
}

std::string RoffCommand(const CLI::App& command) {
  std::string title = fmt::format("narrowfloat {}", command.get_name()), options;
  for (const CLI::Option* option : OptionsOf(command)) {
    if (option->get_required()) title += " " + RoffName(*option);
    const OptionRow& row = RowOf(command, *option);
    std::string meaning = Roff(row.meaning) + ".";
    if (row.choices != nullptr) {
      meaning +=
          fmt::format(" Known: {}.", Roff(fmt::format("{}", fmt::join(row.choices(), ", "))));
    }
    options += RoffTerm(RoffName(*option), meaning);
  }
  return fmt::format(".SS {}\n{}.\n{}", title, Roff(command.get_description()), options);
}

std::string Page(const CLI::App& app) {
  std::string text = fmt::format(
      ".TH NARROWFLOAT 1 \"\" \"narrowfloat {}\" \"User Commands\"\n"
      ".SH NAME\nnarrowfloat \\- reads and writes quantized checkpoints\n"
      ".SH SYNOPSIS\n.B narrowfloat\n.I command\n.RI [ arguments ]\n.RI [ options ]\n"
      ".SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      Roff(NF_VERSION), Roff(app.get_description()));
  for (const CLI::App* command : app.get_subcommands({})) text += RoffCommand(*command);
  text += ".SH EXIT STATUS\n";
  for (const ExitRow& row : ExitCodes()) {
    text +=
        RoffTerm(fmt::format("\\fB{}\\fR", static_cast<int>(row.code)), Roff(row.meaning) + ".");
  }
  text += ".SH ENVIRONMENT\n";
  for (const VariableRow& row : Variables()) {
    text += RoffTerm(fmt::format("\\fB{}\\fR", Roff(row.name)), Roff(row.meaning) + ".");
  }
  return text;
}

Json OptionJson(const CLI::App& command, const CLI::Option& option) {
  const OptionRow& row = RowOf(command, option);
  return {{"names", OptionNames(option)},
          {"value", row.kind == ValueKind::kFlag ? Json(nullptr) : Json(row.value)},
          {"meaning", row.meaning},
          {"required", option.get_required()},
          {"choices", row.choices == nullptr ? Json::array() : Json(row.choices())}};
}

Json TableJson(const CLI::App& app) {
  Json commands = Json::array(), codes = Json::array(), variables = Json::array();
  for (const CLI::App* command : app.get_subcommands({})) {
    Json options = Json::array();
    for (const CLI::Option* option : OptionsOf(*command)) {
      options.push_back(OptionJson(*command, *option));
    }
    commands.push_back({{"name", command->get_name()},
                        {"meaning", command->get_description()},
                        {"options", std::move(options)}});
  }
  for (const ExitRow& row : ExitCodes()) {
    codes.push_back({{"code", static_cast<int>(row.code)}, {"meaning", row.meaning}});
  }
  for (const VariableRow& row : Variables()) {
    variables.push_back({{"name", row.name}, {"meaning", row.meaning}});
  }
  return {{"commands", std::move(commands)},
          {"exit_codes", std::move(codes)},
          {"variables", std::move(variables)}};
}

}  // namespace

Command AddManual(CLI::App& app) {
  return {AddCommand(app, "manual"), [&app] { return Result{Page(app), TableJson(app)}; }};
}

}  // namespace narrowfloat::tools
