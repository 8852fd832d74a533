// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/option_table.h"
#include "tools/option_values.h"

namespace narrowfloat::tools {
namespace {

/// Puts a backslash before each of the characters `special`.
std::string Escape(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

/// Returns `text` in quotes, so that bash and zsh read it unchanged.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::vector<std::string> Names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

/// Returns the options' names, and the completions of the values of options and arguments.
std::string BashCases(const CLI::App& command) {
  const std::string& name = command.get_name();
  std::string values, words, choices;
  for (const CLI::Option* option : OptionsOf(command)) {
    const OptionRow& row = RowOf(command, *option);
    const std::string known =
        row.choices == nullptr ? "" : fmt::format("{}", fmt::join(row.choices(), " "));
    if (option->get_positional()) {
      choices = known;
      continue;
    }
    std::vector<std::string> patterns;
    for (const std::string& spelling : OptionNames(*option)) {
      words += (words.empty() ? "" : " ") + spelling;
      patterns.push_back(Quoted(fmt::format("{} {}", name, spelling)));
    }
    if (row.kind == ValueKind::kFlag) continue;
    values += fmt::format("    {}) words={} ;;\n", fmt::join(patterns, "|"), Quoted(known));
  }
  return values + fmt::format("    {}*) [[ $word == -* ]] && words={} || words={} ;;\n",
                              Quoted(name + " "), Quoted(words), Quoted(choices));
}

std::string Bash(const CLI::App& app) {
  std::string cases;
  for (const CLI::App* command : app.get_subcommands({})) cases += BashCases(*command);
  return fmt::format(R"(# bash completion of narrowfloat, written by `narrowfloat completion bash`
_narrowfloat() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  case "${{COMP_WORDS[1]}} $before" in
{}  esac
  ((COMP_CWORD > 1)) || words='{} --help --version'
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o bashdefault -o default -F _narrowfloat narrowfloat
)",
                     cases, fmt::join(Names(app), " "));
}

/// Returns an option as "'*--scheme[meaning]:S:(a b)'", or an argument as "':IN:_files'".
std::string ZshOption(const CLI::App& command, const CLI::Option& option) {
  const OptionRow& row = RowOf(command, option);
  std::string action;
  if (row.kind == ValueKind::kPath) action = "_files";
  if (row.choices != nullptr) action = fmt::format("({})", fmt::join(row.choices(), " "));
  if (option.get_positional()) return Quoted(fmt::format(":{}:{}", row.value, action));
  const std::string value =
      row.kind == ValueKind::kFlag ? "" : fmt::format(":{}:{}", row.value, action);
  std::string text;
  for (const std::string& name : OptionNames(option)) {
    text += fmt::format("{}{}", text.empty() ? "" : " ",
                        Quoted(fmt::format("*{}[{}]{}", name, Escape(row.meaning, "[]\\"), value)));
  }
  return text;
}

std::string Zsh(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands +=
        fmt::format("    {}\n", Quoted(command->get_name() + ":" + command->get_description()));
    cases += fmt::format("    {})\n      _arguments", command->get_name());
    for (const CLI::Option* option : OptionsOf(*command)) {
      cases += " \\\n        " + ZshOption(*command, *option);
    }
    cases += " ;;\n";
  }
  return fmt::format(R"(#compdef narrowfloat
# zsh completion of narrowfloat, written by `narrowfloat completion zsh`
_narrowfloat() {{
  local -a commands=(
{}  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  shift words
  ((CURRENT--))
  case $words[1] in
{}  esac
}}
# From a folder of functions this file is the function; sourced, it only defines it.
if [[ $funcstack[1] == _narrowfloat ]]; then
  _narrowfloat "$@"
else
  compdef _narrowfloat narrowfloat
fi
)",
                     commands, cases);
}

std::string FishOption(const CLI::App& command, const CLI::Option& option) {
  const OptionRow& row = RowOf(command, option);
  std::string text = fmt::format("complete -c narrowfloat -n '__fish_seen_subcommand_from {}'",
                                 command.get_name());
  if (!option.get_positional()) {
    for (const std::string& name : OptionNames(option)) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
  }
  if (row.choices != nullptr) {
    text += fmt::format(" -x -a '{}'", fmt::join(row.choices(), " "));
  } else if (row.kind == ValueKind::kPath) {
    text += " -r -F";
  } else if (row.kind == ValueKind::kText) {
    text += " -x";
  }
  return text + fmt::format(" -d '{}'\n", Escape(row.meaning, "'\\"));
}

std::string Fish(const CLI::App& app) {
  std::string text = "# fish completion of narrowfloat, written by `narrowfloat completion fish`\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format("complete -c narrowfloat -f -n __fish_use_subcommand -a {} -d '{}'\n",
                        command->get_name(), Escape(command->get_description(), "'\\"));
    for (const CLI::Option* option : OptionsOf(*command)) text += FishOption(*command, *option);
  }
  return text;
}

std::string ScriptOf(Shell shell, const CLI::App& app) {
  switch (shell) {
    case Shell::kBash:
      return Bash(app);
    case Shell::kZsh:
      return Zsh(app);
    case Shell::kFish:
      break;
  }
  return Fish(app);
}

}  // namespace

Command AddCompletion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "completion");
  AddOption(command, "SHELL", *shell);
  return {command, [&app, shell] {
            const std::string script = ScriptOf(ValueIn(kShells, *shell), app);
            return Result{script, {{"shell", *shell}, {"script", script}}};
          }};
}

}  // namespace narrowfloat::tools
