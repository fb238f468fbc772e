// The settings of cleave-link, from flags, a configuration file, or both. A flag overrides the
// file, and a setting for one direction overrides the setting for both.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/core/endpoint.h"
#include "tools/link/script.h"
#include "tools/link/shaper.h"

namespace cleave::link {

struct Settings {
  boost::asio::ip::tcp::endpoint listen;  // port 0: the system chooses
  Endpoint target;
  Profile up;  // from the connecting side to the target
  Profile down;
  std::uint64_t seed = 1;
  std::string statsFile;  // empty: none
  Time statsInterval = std::chrono::seconds(1);
  std::vector<Event> events;  // times are relative to the first connection
};

// A flag that sets one key of the configuration.
struct Flag {
  std::string name;  // such as "--up-rate"
  std::string path;  // such as "up.rate"
  std::string type;  // such as "RATE"
  std::string help;
};
// Returns all flags.
const std::vector<Flag>& flagTable();

struct Flags {
  std::map<std::string, std::string> values;  // the given values, by path
  std::vector<std::string> events;            // in addition to those in the file
  bool insecureBind = false;
};

// Throws UsageError.
Settings readSettings(Config& config, const Flags& flags);

}  // namespace cleave::link
