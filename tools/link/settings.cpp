#include "tools/link/settings.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>

#include "common/core/units.h"
#include "common/core/yaml.h"
#include "common/net/streams/listen.h"

namespace cleave::link {
namespace {

struct Shape {
  std::string_view key;
  std::string_view type;
  std::string_view help;
};

constexpr std::array<Shape, 6> kShapes = {{
    {"rate", "RATE", "such as 200Mbit/s (kbit/s, Mbit/s, Gbit/s, MB/s); default: unlimited"},
    {"latency", "TIME", "such as 20ms (us, ms, s)"},
    {"jitter", "TIME", "maximum additional random latency; packets stay in order"},
    {"loss", "SHARE",
     "share of lost packets, such as 0.1%; each costs the time of a retransmission"},
    {"queue", "SIZE",
     "queue per connection, such as 256KiB; default: 2 ms of data at the rate, 64KiB to 1MiB"},
    {"burst", "SIZE", "bytes that may pass at once after an idle period; default: 0"},
}};

// Limits on the settings.
constexpr std::size_t kMaxWindow = std::size_t{256} << 20;
constexpr std::size_t kMinQueue = std::size_t{4} << 10;

std::vector<Flag> makeFlagTable() {
  std::vector<Flag> table = {
      {"--listen", "listen", "ADDRESS:PORT",
       "Where to accept connections; port 0, as in the default 127.0.0.1:0, picks a free one"},
      {"--target", "target", "HOST:PORT", "Where to forward connections"}};
  for (const auto& [way, whose] : {std::pair{"", "In each direction"},
                                   {"up", "towards the target"},
                                   {"down", "from the target"}}) {
    const std::string prefix(way);
    for (const Shape& shape : kShapes) {
      const std::string key(shape.key);
      table.push_back({"--" + (prefix.empty() ? "" : prefix + "-") + key,
                       (prefix.empty() ? "" : prefix + ".") + key, std::string(shape.type),
                       prefix.empty() ? fmt::format("{}: {}", whose, shape.help)
                                      : fmt::format("Like --{}, {} only", key, whose)});
    }
  }
  table.push_back({"--seed", "seed", "NUMBER", "Random seed of jitter and losses; default: 1"});
  table.push_back(
      {"--stats", "stats.file", "FILE", "Statistics as CSV: one row per direction and interval"});
  table.push_back(
      {"--stats-interval", "stats.interval", "TIME", "Length of an interval; default: 1s"});
  return table;
}

// Looks up keys in the flags and in the file.
class Reader {
 public:
  Reader(Config& config, const Flags& flags) : config_(config), flags_(flags) {}

  // Returns the value of the first path that has one.
  std::optional<Placed> find(const std::vector<std::string>& paths) {
    std::optional<Placed> found;
    for (const std::string& path : paths) {
      const auto flag = flags_.values.find(path);
      if (flag != flags_.values.end() && !found) found = Placed{flagOf(path), flag->second};
    }
    for (const std::string& path : paths) {
      const std::string text = config_.text(path, "");  // also rejects a value in place of a map
      if (text.empty() && !config_.has(path)) continue;
      if (!found) found = Placed{config_.where(path) + ": " + path, text};
    }
    return found;
  }

 private:
  static std::string flagOf(const std::string& path) {
    const auto& table = flagTable();
    return std::find_if(table.begin(), table.end(),
                        [&](const Flag& flag) { return flag.path == path; })
        ->name;
  }

  Config& config_;
  const Flags& flags_;
};

boost::asio::ip::tcp::endpoint readListen(Reader& reader, bool insecureBind) {
  const Placed value = reader.find({"listen"}).value_or(Placed{"--listen", "127.0.0.1:0"});
  const auto endpoint = parseListen(value);
  if (!endpoint.address().is_loopback() && !insecureBind) {
    throw UsageError("unsafe-bind",
                     value.place + ": listening on " + endpoint.address().to_string() +
                         " would let anyone who can reach it connect to the target",
                     "listen on 127.0.0.1, or, on a network that you trust, add --insecure-bind");
  }
  return endpoint;
}

Endpoint readTarget(Reader& reader) {
  const auto value = reader.find({"target"});
  if (!value) {
    throw UsageError("no-target", "--target is missing",
                     "give the address to forward connections to, such as --target 127.0.0.1:4800");
  }
  return parseEndpoint(*value, 1);
}

Profile readProfile(Reader& reader, const std::string& way) {
  Profile profile;
  const auto find = [&](const std::string& key) { return reader.find({way + "." + key, key}); };
  if (const auto value = find("rate")) profile.rate = parseRate(*value);
  if (const auto value = find("latency")) profile.latency = parseTime(*value);
  if (const auto value = find("jitter")) profile.jitter = parseTime(*value);
  if (const auto value = find("loss")) profile.loss = parseLoss(*value);
  if (const auto value = find("burst")) profile.burst = parseSize(*value);
  if (const auto value = find("queue")) {
    profile.queue = parseSize(*value);
    if (profile.queue < kMinQueue) {
      throw UsageError("bad-value",
                       value->place + ": a queue of '" + value->text + "' is too small",
                       "write 4KiB or more, or leave it out");
    }
  }
  return profile;
}

std::uint64_t readSeed(Reader& reader) {
  const auto value = reader.find({"seed"});
  if (!value) return Settings().seed;
  std::uint64_t seed = 0;
  const char* const end = value->text.data() + value->text.size();
  const auto [stop, error] = std::from_chars(value->text.data(), end, seed);
  if (error != std::errc{} || stop != end) {
    throw UsageError("bad-value",
                     value->place + ": " + quotedForError(value->text) + " is not a seed",
                     "write a non-negative integer, such as 1");
  }
  return seed;
}

void readStats(Reader& reader, Settings& settings) {
  if (const auto file = reader.find({"stats.file"})) {
    settings.statsFile = file->text;
    if (file->text.empty()) {
      throw UsageError("bad-value", file->place + ": the name of the file is empty",
                       "name a file, such as link.csv, or leave it out");
    }
  }
  if (const auto interval = reader.find({"stats.interval"})) {
    settings.statsInterval = parseTime(*interval);
    if (settings.statsInterval < std::chrono::milliseconds(10)) {
      throw UsageError("bad-value", interval->place + ": the interval is too short",
                       "write 10ms or more");
    }
  }
}

void readEvents(Config& config, const Flags& flags, Settings& settings) {
  const auto add = [&](const Placed& line) {
    for (const Event& event : parseEvent(line)) settings.events.push_back(event);
  };
  for (const std::string& text : config.texts("events", std::vector<std::string>())) {
    add({config.where("events") + ": events", text});
  }
  for (const std::string& text : flags.events) add({"--event", text});
}

// Checks that the data that the link buffers fits in memory, even after the script's events.
void checkWindow(const Settings& settings) {
  double rate = std::max(settings.up.rate, settings.down.rate);
  Time up = settings.up.latency, down = settings.down.latency;
  for (const Event& event : settings.events) {
    if (event.kind == Event::Kind::rate) rate = std::max(rate, event.rate);
    if (event.kind != Event::Kind::latency) continue;
    if (event.up) up = std::max(up, event.latency);
    if (event.down) down = std::max(down, event.latency);
  }
  const Time roundTrip = up + down + std::max(settings.up.jitter, settings.down.jitter);
  if (rate == 0 || windowBytes(rate, roundTrip) <= kMaxWindow) return;
  throw UsageError("bad-value",
                   fmt::format("{} and a round trip of {} together mean {} in flight, but a "
                               "connection may have at most 268 MB",
                               rateText(rate), durationText(roundTrip),
                               bytesText(rate * std::chrono::duration<double>(roundTrip).count())),
                   "lower the rate, the latencies or the jitter");
}

}  // namespace

const std::vector<Flag>& flagTable() {
  static const std::vector<Flag> table = makeFlagTable();
  return table;
}

Settings readSettings(Config& config, const Flags& flags) {
  Reader reader(config, flags);
  Settings settings;
  settings.up = readProfile(reader, "up");
  settings.down = readProfile(reader, "down");
  settings.seed = readSeed(reader);
  readStats(reader, settings);
  readEvents(config, flags, settings);
  settings.listen = readListen(reader, flags.insecureBind);
  const bool known = config.has("target") || flags.values.contains("target");
  if (known) settings.target = readTarget(reader);
  config.refuseUnknown();  // checked first, because a missing target may be a mistyped key
  if (!known) readTarget(reader);
  checkWindow(settings);
  return settings;
}

}  // namespace cleave::link
