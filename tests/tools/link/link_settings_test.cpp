// The settings of cleave-link and their error messages: units, events, flags, files.
#include "tools/link/settings.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "common/core/error.h"
#include "common/core/units.h"

namespace cleave::link {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

// The error that `task` throws, as its sentence and its hint.
template <typename Task>
std::string refusal(Task task) {
  try {
    task();
  } catch (const UsageError& error) {
    CHECK_FALSE(error.hint().empty());
    return std::string(error.what()) + " | " + error.hint();
  }
  return "nothing was refused";
}

Settings read(const std::string& yaml, const std::map<std::string, std::string>& flags = {},
              const std::vector<std::string>& events = {}) {
  Config config = Config::parse(yaml, "link.yaml", {});
  return readSettings(config, {flags, events, false});
}

TEST_CASE("rates, times, sizes and losses are parsed with their units") {
  const auto rate = [](const char* text) { return parseRate({"--rate", text}); };
  CHECK(rate("200Mbit/s") == 25e6);
  CHECK(rate("1.5 Gbit/s") == 187.5e6);
  CHECK(rate("64kbit/s") == 8e3);
  CHECK(rate("10MB/s") == 10e6);
  CHECK(rate("unlimited") == 0);
  const auto time = [](const char* text) { return parseTime({"--latency", text}); };
  CHECK(time("20ms") == 20ms);
  CHECK(time("0.5ms") == 500us);
  CHECK(time("250us") == 250us);
  CHECK(time("1s") == 1s);
  CHECK(time("0") == 0s);
  const auto size = [](const char* text) { return parseSize({"--queue", text}); };
  CHECK(size("64KiB") == 65536);
  CHECK(size("1MiB") == 1048576);
  CHECK(size("1.5kB") == 1500);
  CHECK(size("2MB") == 2'000'000);
  CHECK(parseLoss({"--loss", "0.1%"}) == Approx(0.001));
  CHECK(parseLoss({"--loss", "0.001"}) == 0.001);
}

TEST_CASE("an invalid value is reported with its location, the fault and an example") {
  const std::vector<std::pair<std::string, std::string>> rates = {
      {"200", "its unit is missing, one of kbit/s, Mbit/s, Gbit/s, MB/s"},
      {"200mbit/s", "'mbit/s' is not one of the units"},
      {"200Mbits",
       "'Mbits' is not one of the units kbit/s, Mbit/s, Gbit/s, MB/s; did you mean Mbit/s?"},
      {"-5Mbit/s", "it does not begin with a number"},
      {"1e3Mbit/s", "'e3Mbit/s' is not one of the units"},
      {"nan", "it does not begin with a number"},
      {"", "it does not begin with a number"},
      {"1.2.3Mbit/s", "it does not begin with a number"},
      {"0", "it is out of range"},
      {"0.1kbit/s", "it is out of range"},
      {"200Gbit/s", "it is out of range"}};
  for (const auto& [text, says] : rates) {
    INFO(text);
    const std::string said = refusal([&] { parseRate({"--up-rate", text}); });
    CHECK_THAT(said, Contains("--up-rate: '" + text + "' is not a rate: " + says));
    CHECK_THAT(said, Contains("such as 200Mbit/s, in the range 1kbit/s to 100Gbit/s"));
  }
  CHECK_THAT(refusal([] { parseTime({"--latency", "20"}); }), Contains("one of us, ms, s"));
  CHECK_THAT(refusal([] { parseTime({"--latency", "61s"}); }), Contains("0 to 60s"));
  CHECK_THAT(refusal([] { parseSize({"--queue", "64kb"}); }), Contains("did you mean kB?"));
  CHECK_THAT(refusal([] { parseLoss({"--loss", "60%"}); }), Contains("0 to 0.5"));
}

TEST_CASE("events are parsed, and a blackhole requires a duration") {
  const auto blackhole = parseEvent({"--event", "5s blackhole for 2s"});
  REQUIRE(blackhole.size() == 2);
  CHECK(blackhole[0].kind == Event::Kind::linkDown);
  CHECK((blackhole[0].up && blackhole[0].down));
  CHECK(blackhole[1].kind == Event::Kind::linkUp);
  CHECK(blackhole[1].at == 7s);
  const Event halfOpen = parseEvent({"--event", "100ms half-open down"}).at(0);
  CHECK(halfOpen.at == 100ms);
  CHECK((halfOpen.down && !halfOpen.up));
  const Event rate = parseEvent({"--event", "1s rate up 50Mbit/s"}).at(0);
  CHECK((rate.up && !rate.down && rate.rate == 6.25e6));
  const Event latency = parseEvent({"--event", "1s latency 80ms"}).at(0);
  CHECK((latency.up && latency.down && latency.latency == 80ms));
  CHECK(parseEvent({"--event", "3s reset"}).at(0).kind == Event::Kind::reset);

  Script script({parseEvent({"", "3s reset"}).at(0), blackhole[1], blackhole[0]});
  CHECK(script.next() == Time(3s));
  CHECK_FALSE(script.take(2999ms));
  CHECK(script.take(6s)->kind == Event::Kind::reset);
  CHECK(script.take(6s)->kind == Event::Kind::linkDown);
  CHECK_FALSE(script.take(6s));
  CHECK(script.take(7s)->kind == Event::Kind::linkUp);
  CHECK_FALSE(script.next());
}

TEST_CASE("an invalid event is reported with its number and an example") {
  const std::vector<std::pair<std::string, std::string>> events = {
      {"", "it is empty; it must begin with a time"},
      {"5s", "'5s' must be followed by an event"},
      {"reset", "'reset' is not a time"},
      {"5s blackhol for 2s", "'blackhol' is not an event; did you mean blackhole?"},
      {"5s blackhole", "'blackhole' must be followed by 'for' and a time"},
      {"5s blackhole 2s", "'for' is missing"},
      {"5s blackhole for two", "'two' is not a time"},
      {"5s half-open", "'half-open' must be followed by up or down"},
      {"5s half-open both", "use 'blackhole'"},
      {"5s rate", "'rate' must be followed by a rate"},
      {"5s rate down 10", "its unit is missing"},
      {"5s reset up", "there are extra words after its end"}};
  for (const auto& [text, says] : events) {
    INFO(text);
    CHECK_THAT(refusal([&] {
                 parseEvent({"--event", text});
               }),
               Contains("--event: event '" + text + "'") && Contains(says));
  }
}

TEST_CASE("a file and flags give the same settings") {
  const Settings file = read(
      "listen: 127.0.0.1:4900\n"
      "target: server:4800\n"
      "rate: 200Mbit/s\n"
      "latency: 20ms\n"
      "up: {rate: 50Mbit/s, loss: 0.1%}\n"
      "down:\n"
      "  latency: 30ms\n"
      "  queue: 128KiB\n"
      "seed: 7\n"
      "stats: {file: link.csv, interval: 100ms}\n"
      "events: [5s blackhole for 2s, 9s reset]\n");
  CHECK(file.listen.port() == 4900);
  CHECK(file.target.host == "server");
  CHECK(file.target.port == 4800);
  CHECK(file.up.rate == 6.25e6);
  CHECK(file.down.rate == 25e6);
  CHECK(file.up.latency == 20ms);
  CHECK(file.down.latency == 30ms);
  CHECK(file.up.loss == Approx(0.001));
  CHECK(file.down.loss == 0);
  CHECK(file.down.queue == 131072);
  CHECK(file.seed == 7);
  CHECK(file.statsFile == "link.csv");
  CHECK(file.statsInterval == 100ms);
  CHECK(file.events.size() == 3);

  const Settings both = read("target: a:1\nrate: 1Mbit/s\nup: {rate: 2Mbit/s}\n",
                             {{"target", "[::1]:4800"}, {"rate", "8Mbit/s"}}, {"1s reset"});
  CHECK(both.target.host == "::1");
  CHECK(both.up.rate == 1e6);  // a flag overrides the file
  CHECK(both.down.rate == 1e6);
  CHECK(both.events.size() == 1);
  const Settings oneWay =
      read("", {{"target", "a:1"}, {"rate", "8Mbit/s"}, {"down.rate", "16Mbit/s"}});
  CHECK(oneWay.up.rate == 1e6);
  CHECK(oneWay.down.rate == 2e6);
  CHECK(oneWay.listen.address().to_string() == "127.0.0.1");
  CHECK(oneWay.listen.port() == 0);
}

TEST_CASE("faults in a file and in combinations of flags are reported with their location") {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"target: a:1\nrat: 5Mbit/s\n", "link.yaml:2: rat is not a known key; did you mean rate?"},
      {"target: a:1\nup:\n  latncy: 5ms\n",
       "link.yaml:3: up.latncy is not a known key; did you "
       "mean up.latency?"},
      {"taget: a:1\n", "link.yaml:1: taget is not a known key; did you mean target?"},
      {"rate: 1Mbit/s\n", "--target is missing"},
      {"target: a:1\n\nrate: fast\n", "link.yaml:3: rate: 'fast' is not a rate"},
      {"target: a:1\nup: 5Mbit/s\n", "link.yaml:2: up is '5Mbit/s', but must be a map of keys"},
      {"target: a\n", "link.yaml:1: target: 'a' has no port"},
      {"target: a:0\n", "does not end in a port"},
      {"target: a:70000\n", "does not end in a port"},
      {"target: :80\n", "has no host"},
      {"target: ::1:80\n", "an IPv6 address in brackets"},
      {"target: a:1\nlisten: localhost:80\n", "is not an IP address"},
      {"target: a:1\nlisten: 0.0.0.0:80\n", "add --insecure-bind"},
      {"target: a:1\nseed: -1\n", "is not a seed"},
      {"target: a:1\nqueue: 1KiB\n", "is too small"},
      {"target: a:1\nevents: [5s reset, 6s rest]\n", "link.yaml:2: events: event '6s rest'"},
      {"target: a:1\nevents: 5s reset\n", "events is '5s reset', but must be a list"},
      {"target: a:1\nstats: {file: x, interval: 1ms}\n", "write 10ms or more"},
      {"target: a:1\nrate: 10Gbit/s\nlatency: 1s\n", "10 Gbit/s and a round trip of 2 s together"},
      {"target: a:1\nrate: 10Gbit/s\nevents: [5s latency 1s]\n", "lower the rate, the latencies"},
  };
  for (const auto& [yaml, says] : files) {
    INFO(yaml);
    CHECK_THAT(refusal([&] { read(yaml); }), Contains(says));
  }
  CHECK_THAT(refusal([] {
               read("", {{"target", "a:1"}, {"up.rate", "5"}});
             }),
             Contains("--up-rate: '5' is not a rate"));
}

TEST_CASE("each flag sets a key of its own, and has a help text") {
  std::set<std::string> names, paths;
  for (const Flag& flag : flagTable()) {
    CHECK(names.insert(flag.name).second);
    CHECK(paths.insert(flag.path).second);
    CHECK_FALSE(flag.help.empty());
  }
  for (const char* name : {"--listen", "--target", "--rate", "--up-rate", "--down-latency",
                           "--jitter", "--loss", "--queue", "--burst", "--stats", "--seed"}) {
    CHECK(names.contains(name));
  }
}

}  // namespace
}  // namespace cleave::link
