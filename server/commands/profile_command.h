// cleave-server profile: measures the blocks that clients may place on this server.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "common/program/program.h"

namespace cleave {

struct ServerProfileOptions {
  CommonOptions common;
  std::string client;  // file path of the client's profile
  std::string output = "server.json";
  std::uint32_t repeats = 3;
  bool json = false;
};
// Adds `profile`. If it is used, sets `command`, which reads `options`.
void addServerProfileCommand(CLI::App& app, ServerProfileOptions& options,
                             std::function<int()>& command);

}  // namespace cleave
