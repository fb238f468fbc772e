#include "common/program/program.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/config/key_suggestion.h"
#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/names.h"
#include "common/core/printable.h"
#include "common/files/record.h"
#include "common/program/resumable_error.h"

namespace cleave {
namespace {

constexpr int kFailedRun = 1, kWrongUse = 2;
constexpr const char* kDefaultHint =
    "try again; if the error repeats, read the logs of client and server, and check that both have "
    "the same version";

// How the error that ends a program is printed on stdout, for programs. On stderr it is always
// text.
enum class ErrorFormat : std::uint8_t { none, json, jsonLines };

// Reads the arguments themselves, because they may be wrong.
ErrorFormat errorFormatOf(int argc, char** argv) {
  const auto has = [&](std::string_view option) {
    return std::find(argv, argv + argc, option) != argv + argc;
  };
  return has("--json-lines") ? ErrorFormat::jsonLines
         : has("--json")     ? ErrorFormat::json
                             : ErrorFormat::none;
}

// Prints the error that ends a program.
class ErrorPrinter {
 public:
  // `output`: borrowed; what the program has written to stdout. Null without JSON.
  ErrorPrinter(std::string program, ErrorFormat format, const EscapedOutput* output)
      : program_(std::move(program)), format_(format), output_(output) {}

  void print(const Error& error) const {
    const auto* const resumable = dynamic_cast<const ResumableError*>(&error);
    const std::string resume = resumable == nullptr ? "" : resumable->command();
    std::string hint = error.hint();
    if (hint.empty() && resume.empty()) hint = kDefaultHint;
    const std::string next = resume.empty() ? "" : "to continue, run: " + resume;
    const bool areBoth = !hint.empty() && !next.empty();
    printText(" [" + error.code() + "]", error.what(), hint + (areBoth ? "; " : "") + next);
    printJson(error, hint, resume);
  }
  // A wrong command line. Its text has no code, because it is not in docs/troubleshooting.md.
  void printWrongUse(const std::string& sentence, const std::string& hint) const {
    printText("", sentence, hint);
    printJson(UsageError("wrong-use", sentence), hint, "");
  }

 private:
  void printText(const std::string& shownCode, std::string line, const std::string& hint) const {
    std::replace(line.begin(), line.end(), '\n', ' ');  // a name from a file may have line breaks
    std::cerr << program_ << ": error" << shownCode << ": " << line << "\n"
              << program_ << ": hint: " << hint << "\n";
  }

  // {"error": {…}}, unless the program has printed its JSON already, or the event `failed` of
  // --json-lines; docs/cli.md describes them.
  void printJson(const Error& error, const std::string& hint, const std::string& resume) const {
    if (format_ == ErrorFormat::none) return;
    if (format_ == ErrorFormat::json && output_->isUsed()) return;
    nlohmann::ordered_json json = {{"code", error.code()},
                                   {"sentence", error.what()},
                                   {"hint", hint},
                                   {"resume", resume},
                                   {"key", error.key()},
                                   {"location", error.location()},
                                   {"exit_code", error.exitCode()}};
    nlohmann::ordered_json whole = {{"error", json}};
    if (format_ == ErrorFormat::jsonLines) {
      whole = {{"event", "failed"}, {"time", utcNow()}};
      whole.update(json);
    }
    using Json = nlohmann::json;
    std::cout << whole.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }

  const std::string program_;
  const ErrorFormat format_;
  const EscapedOutput* const output_;
};

std::string didYouMean(const std::string& meant) {
  return meant.empty() ? "" : "; did you mean " + meant + "?";
}

// The name that `word` is a typing error of, shares words with, or begins like.
std::string nearestOf(const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t kMinBeginning = 3;
  std::string nearest = nearestName(word, known);
  if (nearest.empty()) nearest = nearestKey(word, known);
  for (const std::string& name : known) {
    const std::size_t common = std::min(word.size(), name.size());
    const std::size_t letters = common - std::min(common, name.find_first_not_of('-'));
    if (!nearest.empty() || letters < kMinBeginning) continue;
    if (word.compare(0, common, name, 0, common) == 0) nearest = name;
  }
  return nearest;
}

// The only command whose description has a word that begins like `word`; otherwise empty.
std::string commandAbout(const std::string& word, const CLI::App& parent) {
  constexpr std::size_t kMinLetters = 5;
  if (word.size() < kMinLetters) return "";
  const std::string stem = word.substr(0, word.find_last_not_of("esdr") + 1);
  std::string found;
  for (const CLI::App* command : parent.get_subcommands({})) {
    std::string text = " " + command->get_description();
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (stem.size() < 4 || text.find(" " + stem) == std::string::npos) continue;
    if (!found.empty()) return "";
    found = command->get_name();
  }
  return found;
}

// `whole`: the program name and the commands that precede `command`.
void explainCommand(const ErrorPrinter& printer, const CLI::App& app, const CLI::App& parent,
                    const std::string& whole, const std::string& word) {
  std::vector<std::string> names;
  std::string list;
  for (const CLI::App* command : parent.get_subcommands({})) {
    names.push_back(command->get_name());
    list += (list.empty() ? "" : ", ") + command->get_name();
  }
  const std::string after = &parent == &app ? "" : " after '" + whole + "'";
  std::string meant = nearestOf(word, names);
  if (meant.empty()) meant = commandAbout(word, parent);
  printer.printWrongUse(word.empty()
                            ? "a command is missing" + after
                            : "there is no command '" + word + "'" + after + didYouMean(meant),
                        "give one of: " + list + "; '" + whole + " --help' describes them");
}

void explainOption(const ErrorPrinter& printer, const CLI::App& command, const std::string& whole,
                   const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const bool isOption = word.starts_with("-");
  const std::string name = word.substr(0, word.find('='));
  for (const CLI::App* deeper : command.get_subcommands({})) {
    if (!isOption || deeper->get_option_no_throw(name) == nullptr) continue;
    return printer.printWrongUse("a command is missing before '" + word + "'",
                                 "give one, as in '" + whole + " " + deeper->get_name() + " " +
                                     word + "'; '" + whole + " --help' lists them");
  }
  if (std::find(names.begin(), names.end(), name) != names.end()) {
    return printer.printWrongUse("'" + word + "' is before the command",
                                 "put options after it: '" + whole + " " + word + " …'");
  }
  const bool hasConfig = command.get_option_no_throw("--set") != nullptr;
  const bool isConfig = hasConfig && (word.ends_with(".yaml") || word.ends_with(".yml"));
  printer.printWrongUse(
      whole + (isOption ? " has no option '" + word + "'" + didYouMean(nearestOf(name, names))
                        : " takes no argument '" + word + "'" +
                              (isConfig ? "; did you mean --config " + word + "?" : "")),
      "'" + whole + " --help' lists its options" +
          (isOption && hasConfig ? "; set configuration values with --set KEY=VALUE" : ""));
}

// Explains a wrong command line. CLI11's message gives neither the nearest valid name nor the
// command.
void explain(const ErrorPrinter& printer, CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> extras = app.remaining(true);
  const auto option = std::find_if(extras.begin(), extras.end(),
                                   [](const std::string& word) { return word.starts_with("-"); });
  const CLI::App* command = &app;
  std::string whole = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    whole += " " + command->get_name();
  }
  const bool lacksCommand = !command->get_subcommands({}).empty();
  if (lacksCommand && (extras.empty() || !extras.front().starts_with("-"))) {
    explainCommand(printer, app, *command, whole, extras.empty() ? "" : extras.front());
  } else if (!extras.empty()) {
    explainOption(printer, *command, whole, option == extras.end() ? extras.front() : *option);
  } else {
    printer.printWrongUse(error.what(), "'" + whole + " --help' lists the options");
  }
}

RunError outputError(const std::string& why) {
  return RunError("cannot-write", "stdout cannot be written, so the output is incomplete" + why,
                  "free space on the disk to which stdout is redirected, or redirect it elsewhere");
}

int report(const ErrorPrinter& printer, const std::exception_ptr& error) {
  flushLog();
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    printer.print(known);
    return known.exitCode();
  } catch (const std::bad_alloc&) {
    printer.print(RunError(
        "out-of-memory", "out of memory",
        "use a smaller batch or a smaller model, or close other programs on this machine"));
  } catch (const std::exception& unknown) {
    printer.print(RunError("internal-error", unknown.what()));
  }
  return kFailedRun;
}

// The exit code of a command that returned `code`.
int finishOutput(const ErrorPrinter& printer, int code) {
  std::cout.flush();
  if (std::cout || code != 0) return code;
  return report(printer, std::make_exception_ptr(outputError("")));
}

}  // namespace

std::string shellWord(const std::string& word) {
  const bool isPlain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./:=,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (isPlain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string optionsText(const CommonOptions& options) {
  std::string text;
  if (!options.config.empty()) text += " --config " + shellWord(options.config);
  for (const std::string& each : options.overrides) text += " --set " + shellWord(each);
  return text;
}

void writeOutput(const std::string& text) {
  if (const int error = writeAll(STDOUT_FILENO, text)) {
    throw outputError(std::string(": ") + std::strerror(error));
  }
}

void addCommonOptions(CLI::App& command, CommonOptions& options, bool configRequired) {
  command.add_option("--config", options.config, "The configuration, a YAML file")
      ->required(configRequired);
  command
      .add_option(
          "--set", options.overrides,
          "Replaces one value of the configuration; repeatable; the command 'keys' lists all keys")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--log-level", options.logLevel, "trace, debug, info, warn or error")
      ->default_str(options.logLevel);
}

Config loadConfig(const CommonOptions& options) {
  if (options.config.empty()) return Config::parse("", "the defaults", options.overrides);
  if (!options.configText.empty()) {
    return Config::parse(options.configText, options.config, options.overrides);
  }
  return Config::load(options.config, options.overrides);
}

int reportError(const std::string& program, std::exception_ptr error) {
  return report(ErrorPrinter(program, ErrorFormat::none, nullptr), error);
}

void addKeysCommand(CLI::App& app, KeysOptions& options, std::vector<KeyText> (*keys)(),
                    std::function<int()>& command) {
  CLI::App* list = app.add_subcommand("keys", "Lists the keys of the configuration");
  auto* json = list->add_flag("--json", options.json, "Prints JSON");
  list->add_flag("--markdown", options.markdown,
                 "Prints the tables that docs/configuration.md contains")
      ->excludes(json);
  list->footer("Example:\n  " + app.get_name() + " keys --json");
  list->callback([&options, keys, &command] {
    command = [&options, keys] {
      const KeyFormat format = options.json       ? KeyFormat::json
                               : options.markdown ? KeyFormat::markdown
                                                  : KeyFormat::plain;
      std::cout << printKeys(keys(), format) << std::flush;
      return 0;
    };
  });
}

int runProgram(CLI::App& app, int argc, char** argv, const std::function<int()>& command) {
  const EscapedOutput output(std::cout), errors(std::cerr);
  const ErrorPrinter printer(app.get_name(), errorFormatOf(argc, argv), &output);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    std::cout << help << (help.ends_with('\n') ? "" : "\n");
    return finishOutput(printer, 0);
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << "\n";
    return finishOutput(printer, 0);
  } catch (const CLI::ParseError& error) {
    explain(printer, app, error);
    return kWrongUse;
  }
  try {
    const int code = command();
    flushLog();
    return finishOutput(printer, code);
  } catch (...) {
    return report(printer, std::current_exception());
  }
}

}  // namespace cleave
