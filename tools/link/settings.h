// What cleave-link is told: by flags, by a configuration file, or by both, where a flag beats the
// file, and what is said of one direction beats what is said of both.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/config.h"
#include "common/core/endpoint.h"
#include "tools/link/script.h"
#include "tools/link/shaper.h"

namespace cleave::link {

struct Settings {
  boost::asio::ip::tcp::endpoint listen;  // port 0: the system chooses
  Endpoint target;
  Profile up;  // from whoever connects to the target
  Profile down;
  std::uint64_t seed = 1;
  std::string statsFile;  // empty: none
  Time statsInterval = std::chrono::seconds(1);
  std::vector<Event> events;  // times count from the first connection
};

// A flag that sets one key of the configuration.
struct Flag {
  std::string name;  // "--up-rate"
  std::string path;  // "up.rate"
  std::string type;  // "RATE"
  std::string help;
};
// All of them, each once.
const std::vector<Flag>& flagTable();

struct Flags {
  std::map<std::string, std::string> values;  // by path; those that were given
  std::vector<std::string> events;            // added to those of the file
  bool insecureBind = false;
};

// Throws UsageError.
Settings readSettings(Config& config, const Flags& flags);

}  // namespace cleave::link
