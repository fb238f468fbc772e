#include "daemon/program.h"

#include <iostream>
#include <new>

#include "common/core/error.h"
#include "common/core/log.h"

namespace cleave {

void addCommonOptions(CLI::App& command, CommonOptions& options, bool configRequired) {
  command.add_option("--config", options.config, "The configuration, a YAML file")
      ->required(configRequired);
  command
      .add_option("--set", options.overrides,
                  "Replaces one value of the configuration; may be given again")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--log-level", options.logLevel, "trace, debug, info, warn or error")
      ->default_str("info");
}

Config loadConfig(const CommonOptions& options) {
  if (options.config.empty()) return Config::parse("", "the defaults", options.overrides);
  return Config::load(options.config, options.overrides);
}

int reportError(const std::string& program, std::exception_ptr error) {
  flushLog();
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    std::cerr << program << ": " << known.what() << "\n";
    if (!known.fix().empty()) std::cerr << program << ": to mend it: " << known.fix() << "\n";
    return known.exitCode();
  } catch (const std::bad_alloc&) {
    std::cerr << program << ": out of memory\n";
  } catch (const std::exception& unknown) {
    std::cerr << program << ": internal error: " << unknown.what() << "\n";
  }
  return 1;
}

int runProgram(CLI::App& app, int argc, char** argv, const std::function<int()>& command) {
  constexpr int kWrongUse = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::string help = app.help();
    std::cout << help << (help.ends_with('\n') ? "" : "\n");
    return 0;
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << "\n";
    return 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << app.get_name() << ": " << error.what() << "\n"
              << app.get_name() << ": '" << app.get_name() << " --help' lists what there is\n";
    return kWrongUse;
  }
  try {
    const int code = command();
    flushLog();
    return code;
  } catch (...) {
    return reportError(app.get_name(), std::current_exception());
  }
}

}  // namespace cleave
