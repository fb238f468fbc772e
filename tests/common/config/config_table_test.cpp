#include "common/config/config_table.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

using namespace cleave;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

namespace {

struct Inner {
  std::uint32_t depth = 2;
};

struct Settings {
  std::uint16_t port = 4800;
  Inner inner;
  double rate = 0.5;
  milliseconds deadline{1500};
  std::size_t memory = std::size_t{8} << 20;
  bool fetch = true;
  std::string folder = "certs";
  std::string file;
  std::string name;
  double end = -1;
  std::vector<std::string> order;  // the arguments of each row's functions
};

// One row of every type.
ConfigTable<Settings> makeTable() {
  ConfigTable<Settings> table;
  table.section("Net");
  table.text("name", "text", &Settings::name, "a name").then([](Config&, Settings& s) {
    s.order.push_back("name=" + s.name);
  });
  table.integer("net.port", "", 0, 65535, &Settings::port, "0: any")
      .then([](Config& config, Settings& s) {
        s.order.push_back("port=" + std::to_string(s.port) + " after name=" + s.name);
        if (s.port == 13) throw UsageError("bad-config", config.where("net.port") + ": unlucky");
      });
  table.integer(
      "depth", "layers", 1, 64, [](Settings & s) -> auto& { return s.inner.depth; }, "hidden");
  table.section("Rest");
  table.number("rate", "1/s", 0.1, 1e6, &Settings::rate, "see [rates](#rates)");
  table.seconds("limits.seconds", 0.1, 60, &Settings::deadline, "a deadline");
  table.mebibytes("limits.mib", 1, 1 << 24, &Settings::memory, "memory");
  table.boolean("fetch", &Settings::fetch, "fetches");
  table.text("tls.folder", "path", &Settings::folder, "has `ca.crt`");
  table.text("access.file", "path", &Settings::file, "who may do what");
  table.add("end", numberType(0, 1), "", defaultText(0.25), "the last rate",
            [](Config& config, Settings& s) { s.end = config.number("end", 0, 1, 0.25); });
  table.add("shown", "boolean", "", "`false`", "only shown", nullptr);
  return table;
}

Settings read(const std::string& text) {
  Config config = Config::parse(text, "a.yaml", {});
  return makeTable().read(config);
}

struct Refusal {
  std::string code;
  std::string sentence;
  std::string hint;
};

Refusal refusal(const std::string& text) {
  try {
    read(text);
  } catch (const UsageError& error) {
    return {error.code(), error.what(), error.hint()};
  }
  return {"", "nothing was refused", ""};
}

KeyText textOf(const std::string& name) {
  for (const KeyText& text : makeTable().texts()) {
    if (text.name == name) return text;
  }
  FAIL("no row " << name);
  return {};
}

}  // namespace

TEST_CASE("without a value, every row yields its field's default") {
  const Settings settings = read("");
  const Settings initial;
  CHECK(settings.port == initial.port);
  CHECK(settings.inner.depth == initial.inner.depth);
  CHECK(settings.rate == initial.rate);
  CHECK(settings.deadline == initial.deadline);
  CHECK(settings.memory == initial.memory);
  CHECK(settings.fetch == initial.fetch);
  CHECK(settings.folder == initial.folder);
  CHECK(settings.file.empty());
  CHECK(settings.end == 0.25);
}

TEST_CASE("every row stores its value in its field, converted to the field's unit") {
  const Settings settings = read(
      "name: a\n"
      "net: {port: 65535}\n"
      "depth: 64\n"
      "rate: 1e6\n"
      "limits: {seconds: 0.25, mib: 3}\n"
      "fetch: false\n"
      "tls: {folder: /etc/certs}\n"
      "access: {file: access.yaml}\n"
      "end: 1\n");
  CHECK(settings.name == "a");
  CHECK(settings.port == 65535);
  CHECK(settings.inner.depth == 64);
  CHECK(settings.rate == 1e6);
  CHECK(settings.deadline == milliseconds(250));
  CHECK(settings.memory == std::size_t{3} << 20);
  CHECK_FALSE(settings.fetch);
  CHECK(settings.folder == "/etc/certs");
  CHECK(settings.file == "access.yaml");
  CHECK(settings.end == 1);
}

TEST_CASE("every row refuses a value outside its range or of another type") {
  CHECK(refusal("net:\n  port: 65536\n").sentence ==
        "a.yaml:2: net.port is '65536', but must be an integer in 0…65535");
  CHECK_THAT(refusal("net: {port: -1}").sentence, Contains("net.port"));
  CHECK_THAT(refusal("depth: 0").sentence, Contains("depth") && Contains("1…64"));
  CHECK_THAT(refusal("depth: 65").sentence, Contains("depth") && Contains("1…64"));
  CHECK_THAT(refusal("depth: 1.5").sentence, Contains("must be an integer"));
  CHECK_THAT(refusal("rate: 0.09").sentence, Contains("rate") && Contains("0.1…"));
  CHECK_THAT(refusal("rate: 1.1e6").sentence, Contains("rate") && Contains("0.1…"));
  CHECK_THAT(refusal("limits: {seconds: 0.09}").sentence, Contains("limits.seconds"));
  CHECK_THAT(refusal("limits: {seconds: 61}").sentence, Contains("limits.seconds"));
  CHECK_THAT(refusal("limits: {mib: 0}").sentence, Contains("limits.mib"));
  CHECK_THAT(refusal("limits: {mib: 16777217}").sentence, Contains("limits.mib"));
  CHECK_THAT(refusal("fetch: 7").sentence, Contains("fetch") && Contains("true or false"));
  CHECK_THAT(refusal("tls: {folder: [a, b]}").sentence, Contains("tls.folder"));
  CHECK_THAT(refusal("end: 2").sentence, Contains("end"));
}

TEST_CASE("an unknown key is refused with the nearest known key") {
  const Refusal near = refusal("net:\n  prot: 1\n");
  CHECK(near.code == "config-unknown-key");
  CHECK(near.sentence == "a.yaml:2: net.prot is not a known key; did you mean net.port?");
  const Refusal far = refusal("zzzzzzzzzzzz: 1");
  CHECK(far.code == "config-unknown-key");
  for (const char* first : {"net", "depth", "rate", "limits", "fetch", "tls", "access", "end"}) {
    CHECK_THAT(far.hint, Contains(first));
  }
  const Refusal inSection = refusal("limits: {zzzzzzzzzzzz: 1}");
  for (const char* key : {"limits.seconds", "limits.mib"}) {
    CHECK_THAT(inSection.hint, Contains(key));
  }
}

TEST_CASE("an invalid value is reported before an unknown key") {
  CHECK_THAT(refusal("unknown: 1\ndepth: 0").sentence, Contains("depth"));
}

TEST_CASE("`then` runs after its row is read, and sees the settings of the rows before it") {
  CHECK(read("net: {port: 7}\nname: a").order ==
        std::vector<std::string>{"name=a", "port=7 after name=a"});
  CHECK(refusal("net:\n  port: 13\n").sentence == "a.yaml:2: unlucky");
}

TEST_CASE("a row shows its type with range, its unit, its default and its section") {
  const KeyText port = textOf("net.port");
  CHECK(port.section == "Net");
  CHECK(port.type == "integer, 0 … 65535");
  CHECK(port.unit.empty());
  CHECK(port.defaultValue == "`4800`");
  CHECK(port.meaning == "0: any");
  CHECK(textOf("depth").unit == "layers");
  CHECK(textOf("depth").defaultValue == "`2`");
  const KeyText rate = textOf("rate");
  CHECK(rate.section == "Rest");
  CHECK(rate.type == "number, 0.1 … 1e6");
  CHECK(rate.defaultValue == "`0.5`");
  CHECK(textOf("limits.seconds").unit == "s");
  CHECK(textOf("limits.seconds").defaultValue == "`1.5`");
  CHECK(textOf("limits.mib").unit == "MiB");
  CHECK(textOf("limits.mib").type == "integer, 1 … 16777216");
  CHECK(textOf("limits.mib").defaultValue == "`8`");
  CHECK(textOf("fetch").type == "boolean");
  CHECK(textOf("fetch").defaultValue == "`true`");
  CHECK(textOf("tls.folder").defaultValue == "`certs`");
  CHECK(textOf("access.file").defaultValue == "none");
  CHECK(textOf("end").type == "number, 0 … 1");
}

TEST_CASE("a row without a function is listed but reads nothing") {
  CHECK(textOf("shown").meaning == "only shown");
  CHECK(refusal("shown: true").code == "config-unknown-key");
}

TEST_CASE("numbers in texts are printed in their shortest form") {
  CHECK(numberType(0, 604800) == "number, 0 … 604800");
  CHECK(numberType(1e-6, 1e12) == "number, 1e-6 … 1e12");
  CHECK(defaultText(0.1) == "`0.1`");
  CHECK(defaultText(2000000) == "`2e6`");
}

TEST_CASE("the Markdown output has one table of keys per section") {
  const std::string printed = printKeys(makeTable().texts(), KeyFormat::markdown);
  const std::string head =
      "| Key | Type and range | Unit | Default | Meaning |\n|---|---|---|---|---|\n";
  CHECK(printed.starts_with(head + "| `name` | text |  | none | a name |\n"));
  CHECK_THAT(printed, Contains("| hidden |\n\n" + head + "| `rate` |"));
  CHECK_THAT(printed, Contains("see [rates](#rates)"));
}

TEST_CASE("the text and JSON outputs of keys have no Markdown marks") {
  const std::vector<KeyText> texts = makeTable().texts();
  const std::string plain = printKeys(texts, KeyFormat::plain);
  CHECK(plain.starts_with("Net\n  name: text; default: none\n      a name\n"));
  CHECK_THAT(plain, Contains("\n\nRest\n  rate: number, 0.1 … 1e6 1/s; default: 0.5\n"
                             "      see rates\n"));
  const auto keys = nlohmann::json::parse(printKeys(texts, KeyFormat::json)).at("keys");
  REQUIRE(keys.size() == texts.size());
  CHECK(keys[1].at("section") == "Net");
  CHECK(keys[1].at("key") == "net.port");
  CHECK(keys[1].at("type") == "integer, 0 … 65535");
  CHECK(keys[1].at("default") == "4800");
  CHECK(keys[3].at("unit") == "1/s");
  CHECK(keys[3].at("meaning") == "see rates");
}
