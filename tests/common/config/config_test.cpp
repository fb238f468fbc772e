#include "common/config/config.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/config/key_suggestion.h"
#include "common/core/names.h"
#include "common/core/yaml.h"

using namespace cleave;
using Catch::Matchers::Contains;

namespace {

constexpr char kFile[] = "configs/a.yaml";

Config config(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return Config::parse(text, kFile, overrides);
}

// The error that `use` throws, as its sentence and its hint.
struct Refusal {
  std::string sentence;
  std::string hint;
};

template <typename Use>
Refusal refusal(Use use) {
  try {
    use();
  } catch (const UsageError& error) {
    CHECK(error.exitCode() == 2);
    return {error.what(), error.hint()};
  }
  return {"nothing was refused", ""};
}

std::string parseError(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return refusal([&] { config(text, overrides); }).sentence;
}

template <typename Read>
std::string readError(const std::string& text, Read read) {
  Config parsed = config(text);
  return refusal([&] { read(parsed); }).sentence;
}

std::string integerError(const std::string& value) {
  return readError("batch: " + value, [](Config& c) { c.integer("batch", 1, 65536); });
}

double readNumber(const std::string& value) {
  return config("x: " + value).number("x", -1e300, INFINITY);
}

}  // namespace

TEST_CASE("values of every type are read by their path") {
  Config c = config(
      "train:\n"
      "  batch: 64\n"
      "  rate: 1e-3\n"
      "  shuffle: true\n"
      "  widths: [64, -1]\n"
      "model: {name: small_cnn, layers: [a, 'b c', 3]}\n");
  CHECK(c.integer("train.batch", 1, 65536) == 64);
  CHECK(c.number("train.rate", 0, 1) == 1e-3);
  CHECK(c.boolean("train.shuffle"));
  CHECK(c.integers("train.widths", -1, 100) == std::vector<std::int64_t>{64, -1});
  CHECK(c.text("model.name", {}, {"mlp", "small_cnn"}) == "small_cnn");
  CHECK(c.texts("model.layers") == std::vector<std::string>{"a", "b c", "3"});
  CHECK_NOTHROW(c.refuseUnknown());
}

TEST_CASE("defaults apply if a key, its map or the whole file is missing") {
  Config c = config("# nothing yet\n");
  CHECK(c.integer("train.batch", 1, 8, 4) == 4);
  CHECK(c.number("rate", 0, 1, 0.5) == 0.5);
  CHECK_FALSE(c.boolean("shuffle", false));
  CHECK(c.text("name", "mlp") == "mlp");
  CHECK(c.integers("widths", 0, 9, std::vector<std::int64_t>{1, 2}).size() == 2);
  CHECK(c.texts("layers", std::vector<std::string>{}).empty());
  CHECK(config("train:\n").integer("train.batch", 1, 8, 4) == 4);
}

TEST_CASE("maps are walked in file order") {
  const Config c = config("flows:\n  activation/0: none\n  gradient/1: uniform:bits=4\nempty:\n");
  CHECK(c.keys("flows") == std::vector<std::string>{"activation/0", "gradient/1"});
  CHECK(c.keys("") == std::vector<std::string>{"flows", "empty"});
  CHECK(c.keys("flows.gradient/1").empty());
  CHECK(c.keys("none").empty());
  CHECK(c.has("flows.gradient/1"));
  CHECK(c.has("empty"));
  CHECK_FALSE(c.has("flows.gradient/0"));
  CHECK(c.isMap("flows"));
  CHECK_FALSE(c.isMap("flows.gradient/1"));
}

TEST_CASE("a value of the wrong type or range is refused with its line") {
  Config c = config("train:\n\n  batch: abc\n");
  const Refusal error = refusal([&] { c.integer("train.batch", 1, 65536); });
  CHECK(error.sentence ==
        "configs/a.yaml:3: train.batch is 'abc', but must be an integer in 1…65536");
  CHECK_THAT(error.hint, Contains("set train.batch to an integer in 1…65536"));
}

TEST_CASE("only plain digits within the range are accepted as an integer") {
  for (const char* value : {"1e3", "3.0", "0x10", "010", "+5", "1_000", "'64'", "64 bits", "true",
                            "0", "-1", "65537", "99999999999999999999", "[1]", "{a: 1}", "", "~"}) {
    INFO(value);
    CHECK_THAT(integerError(value), Contains("configs/a.yaml:1: batch is ") &&
                                        Contains("but must be an integer in 1…65536"));
  }
  CHECK(integerError("65536") == "nothing was refused");
  CHECK(integerError("1") == "nothing was refused");
}

TEST_CASE("unbounded integers are described without their bounds") {
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  CHECK_THAT(readError("n: x", [&](Config& c) { c.integer("n", 1, max); }),
             Contains("an integer of at least 1"));
  CHECK(config("n: -9223372036854775808").integer("n", -max - 1, max) == -max - 1);
}

TEST_CASE("numbers are accepted in every usual spelling, but not as words") {
  CHECK(readNumber("3") == 3);
  CHECK(readNumber("-2.5e-3") == -2.5e-3);
  CHECK(readNumber(".5") == 0.5);
  CHECK(readNumber(".inf") == INFINITY);
  for (const char* value : {"nan", ".nan", "inf", "1e400", "1,5", "1.5x", "'1'", "-", "[1]"}) {
    INFO(value);
    CHECK_THROWS_AS(readNumber(value), UsageError);
  }
  CHECK(readError("rate: 1.5", [](Config& c) { c.number("rate", 0, 1); }) ==
        "configs/a.yaml:1: rate is '1.5', but must be a number in 0.0…1.0");
  CHECK_THROWS_AS(config("rate: .inf").number("rate", 0, 1), UsageError);
}

TEST_CASE("a list of numbers may be given as a single number") {
  Config c = config("mean: [0.5, 1e-3, -2]\nstd: 0.25\nempty: []\n");
  CHECK(c.numbers("mean", -10, 10) == std::vector<double>{0.5, 1e-3, -2});
  CHECK(c.numbers("std", 0, 1) == std::vector<double>{0.25});
  CHECK(c.numbers("empty", 0, 1).empty());
  CHECK(c.numbers("other", 0, 1, std::vector<double>{1}) == std::vector<double>{1});
  Config again = config(c.resolved());
  CHECK(again.numbers("mean", -10, 10) == std::vector<double>{0.5, 1e-3, -2});
  CHECK(again.numbers("std", 0, 1) == std::vector<double>{0.25});
  CHECK(again.numbers("other", 0, 1) == std::vector<double>{1});
}

TEST_CASE("a list of numbers can have a name") {
  Config c = config("mean: imagenet\n");
  const std::map<std::string, std::vector<double>> names = {{"imagenet", {0.5, 0.25}}};
  CHECK(c.numbers("mean", 0, 1, {}, names) == std::vector<double>{0.5, 0.25});
  CHECK(config(c.resolved()).numbers("mean", 0, 1) == std::vector<double>{0.5, 0.25});
  CHECK(readError("mean: imagenett",
                  [&](Config& other) { other.numbers("mean", 0, 1, {}, names); }) ==
        "configs/a.yaml:1: mean is 'imagenett', but must be a number in 0.0…1.0, or imagenet");
}

TEST_CASE("a list of maps is read item by item, and a single map is a list of one") {
  for (const std::string text :
       {"insert:\n  - {cut: 0, kind: conv}\n  - cut: 1\n    kind: linear\n",
        "insert: [{cut: 0, kind: conv}, {cut: 1, kind: linear}]\n"}) {
    Config c = config(text);
    REQUIRE(c.items("insert") == 2);
    CHECK(c.integer("insert[0].cut", 0, 9) == 0);
    CHECK(c.text("insert[0].kind") == "conv");
    CHECK(c.integer("insert[1].cut", 0, 9) == 1);
    CHECK(c.text("insert[1].kind") == "linear");
    c.refuseUnknown();
    CHECK(c.resolved() == "insert:\n  - cut: 0\n    kind: conv\n  - cut: 1\n    kind: linear\n");
    Config again = config(c.resolved());
    REQUIRE(again.items("insert") == 2);
    CHECK(again.text("insert[1].kind") == "linear");
  }
  Config one = config("a: {insert: {cut: 3}}", {"a.insert.rank=4"});
  REQUIRE(one.items("a.insert") == 1);
  CHECK(one.integer("a.insert[0].cut", 0, 9) == 3);
  CHECK(one.integer("a.insert[0].rank", 0, 9) == 4);
  CHECK(one.where("a.insert[0].rank") == "--set a.insert.rank=4");
  CHECK(one.resolved() == "a:\n  insert:\n    - cut: 3\n      rank: 4\n");
  for (const std::string text : {"x: 1", "x: 1\ninsert:", "x: 1\ninsert: []", "x: 1\ninsert: {}"}) {
    Config none = config(text);
    CHECK(none.items("insert") == 0);
    none.integer("x", 0, 9);
    none.refuseUnknown();
    CHECK(none.resolved() == "insert: []\nx: 1\n");
  }
}

TEST_CASE("an invalid list of maps is refused with the item's location") {
  const auto items = [](Config& c) { c.items("insert"); };
  CHECK_THAT(readError("insert: conv", items), Contains("a.yaml:1") && Contains("insert"));
  CHECK_THAT(readError("insert:\n  - {cut: 0}\n  - 3\n", items),
             Contains("a.yaml:3") && Contains("insert[1]"));
  const auto first = [](Config& c) {
    c.items("insert");
    c.integer("insert[0].cut", 0, 9);
    c.integer("insert[0].rank", 0, 9, 1);
    c.refuseUnknown({{{"insert.kernel", "size of the kernel"}}});
  };
  CHECK_THAT(readError("insert:\n  - cut: ten\n", first), Contains("a.yaml:2: insert[0].cut"));
  CHECK_THAT(readError("insert: [{rank: 1}]", first), Contains("insert[0].cut is missing"));
  CHECK_THAT(readError("insert:\n  - cut: 0\n    ranc: 2\n", first),
             Contains("a.yaml:3: insert[0].ranc") && Contains("did you mean insert[0].rank?"));
  CHECK_THAT(readError("insert: [{cut: 0, kernel: 2}]", first),
             Contains("insert[0].kernel has no effect"));
}

TEST_CASE("an invalid item of a list of numbers is named") {
  const auto read = [](Config& c) { c.numbers("mean", 0, 1); };
  CHECK(readError("mean: [0.5, x]", read) ==
        "configs/a.yaml:1: mean[1] is 'x', but must be a number in 0.0…1.0");
  CHECK(readError("mean: 2", read) ==
        "configs/a.yaml:1: mean is '2', but must be a number in 0.0…1.0");
  CHECK(readError("mean: {a: 1}", read) ==
        "configs/a.yaml:1: mean is a map, but must be a number in 0.0…1.0");
  CHECK_THAT(readError("other: 1", read), Contains("mean is missing"));
}

TEST_CASE("only true and false are booleans") {
  for (const char* value : {"yes", "on", "1", "True", "'true'", "", "[]"}) {
    INFO(value);
    CHECK_THAT(readError("b: " + std::string(value), [](Config& c) { c.boolean("b"); }),
               Contains("but must be true or false"));
  }
  CHECK_FALSE(config("b: false").boolean("b"));
}

TEST_CASE("an unknown choice is refused with the nearest known one") {
  const auto read = [](Config& c) { c.text("schedule", {}, {"gpipe", "1f1b", "priority"}); };
  CHECK(readError("schedule: gpip", read) ==
        "configs/a.yaml:1: schedule is 'gpip', but must be one of gpipe, 1f1b, priority; did you "
        "mean gpipe?");
  CHECK_THAT(readError("schedule: {a: 1}", read),
             Contains("schedule is a map, but must be one of"));
}

TEST_CASE("a list's bad item is named by its index") {
  const std::string text = "widths:\n  - 64\n  - x\n";
  CHECK_THAT(readError(text, [](Config& c) { c.integers("widths", 1, 9999); }),
             Contains("configs/a.yaml:3: widths[1] is 'x', but must be an integer"));
  CHECK_THAT(readError("widths: 64", [](Config& c) { c.integers("widths", 1, 9999); }),
             Contains("configs/a.yaml:1: widths is '64', but must be a list"));
  CHECK_THAT(readError("names: [[a]]", [](Config& c) { c.texts("names"); }),
             Contains("names[0] is a list, but must be text"));
}

TEST_CASE("a missing key is named, with the mistyped key that was probably meant") {
  Config c = config("train:\n  epochs: 3\n  batchs: 64\n");
  c.integer("train.epochs", 1, 9);
  Refusal error = refusal([&] { c.integer("train.batch", 1, 65536); });
  CHECK(error.sentence == "configs/a.yaml: train.batch is missing");
  CHECK_THAT(error.hint, Contains("rename train.batchs (configs/a.yaml:3) to train.batch"));

  error = refusal([&] { c.text("model.name"); });
  CHECK(error.hint == "add model.name (text), or pass --set model.name=VALUE");
  // A key in another section is not a misspelt one.
  Config other = config("data:\n  test:\n    file: a\n");
  error = refusal([&] { other.text("model.file"); });
  CHECK(error.hint == "add model.file (text), or pass --set model.file=VALUE");
}

TEST_CASE("a value in place of a map is refused, even if the map has defaults") {
  for (const char* text : {"train: 64", "train: [64]"}) {
    CHECK_THAT(readError(text, [](Config& c) { c.integer("train.batch", 1, 8, 4); }),
               Contains("configs/a.yaml:1: train is ") && Contains("but must be a map of keys"));
  }
}

TEST_CASE("a single value sets one key of its map, in a file and in an override") {
  for (Config& c : std::array{
           config("train:\n  optimizer: adam\n"),
           config("train: {optimizer: {name: sgd, momentum: 0.9}}", {"train.optimizer=adam"})}) {
    c.expand("train.optimizer", "name");
    CHECK(c.keys("train.optimizer") == std::vector<std::string>{"name"});
    CHECK(c.text("train.optimizer.name") == "adam");
    c.refuseUnknown();
    CHECK(c.resolved() == "train:\n  optimizer:\n    name: adam\n");
  }
  Config map = config("train: {optimizer: {name: sgd, momentum: 0.9}}");
  map.expand("train.optimizer", "name");
  map.expand("train.rate", "peak");  // there is no such key
  CHECK(map.text("train.optimizer.name") == "sgd");
  CHECK(map.number("train.optimizer.momentum", 0, 1) == 0.9);
  map.refuseUnknown();
  // Errors in the expanded map name the location of the value.
  Config bad = config("", {"rate=fast"});
  bad.expand("rate", "peak");
  CHECK_THAT(refusal([&] { bad.number("rate.peak", 0, 1); }).sentence, Contains("--set rate=fast"));
}

TEST_CASE("an unknown key is refused with the nearest known one") {
  Config c = config("train:\n  seed: 1\n  batchs: 64\n");
  c.integer("train.seed", 0, 9);
  c.integer("train.batch", 1, 64, 32);
  c.integer("eval.batch", 1, 64, 32);
  const Refusal error = refusal([&] { c.refuseUnknown(); });
  CHECK(error.sentence ==
        "configs/a.yaml:3: train.batchs is not a known key; did you mean train.batch?");
  CHECK(error.hint == "rename it to train.batch, or remove it");
}

TEST_CASE("the nearest key is found by comparing the last parts first, then the whole keys") {
  const auto unknown = [](const std::string& text) {
    Config c = config(text);
    for (const char* known : {"train.batch", "eval.batch", "train.step", "train.micro_batches",
                              "train.optimizer.name"}) {
      c.text(known, "");
    }
    return refusal([&] { c.refuseUnknown(); }).sentence;
  };
  CHECK_THAT(unknown("trian: {batch: 1}"), Contains("did you mean train.batch?"));
  CHECK_THAT(unknown("evl: {batch: 1}"), Contains("did you mean eval.batch?"));
  CHECK_THAT(unknown("train: {optimizr: adamw}"), Contains("did you mean train.optimizer?"));
  CHECK_THAT(unknown("micro_batches: 1"), Contains("did you mean train.micro_batches?"));
  CHECK_THAT(unknown("train_batch: 1"), Contains("did you mean train.batch?"));
  CHECK_THAT(unknown("train: {momentum: 1}"), !Contains("did you mean"));
}

TEST_CASE("a suggested key is one that a user may have meant") {
  const std::vector<std::string> known = {"run.name",
                                          "run.seed",
                                          "model.cuts",
                                          "model.lora.rank",
                                          "data.seed",
                                          "data.pair",
                                          "data.folder",
                                          "data.target_type",
                                          "data.augment.crop_padding",
                                          "insert.l1",
                                          "insert.every_steps",
                                          "train.batch",
                                          "train.micro_batches",
                                          "train.epochs",
                                          "train.max_steps",
                                          "train.schedule",
                                          "train.learning_rate",
                                          "train.learning_rate.schedule",
                                          "train.optimizer.weight_decay",
                                          "train.loss.label_smoothing",
                                          "keep.last",
                                          "keep.best",
                                          "eval.batch",
                                          "eval.every",
                                          "quality.every",
                                          "tls.folder",
                                          "threads.client",
                                          "connect.retry_seconds",
                                          "connect.reconnect_seconds",
                                          "connect.progress_seconds",
                                          "connect.direct",
                                          "checkpoint.every_seconds",
                                          "checkpoint.every_steps",
                                          "checkpoint.keep",
                                          "probe.seconds"};
  const std::vector<std::pair<std::string, std::string>> meant = {
      // Words too many or too few.
      {"eval.every_epochs", "eval.every"},
      {"eval.batch_size", "eval.batch"},
      {"train.batch_size", "train.batch"},
      {"train.steps", "train.max_steps"},
      {"connect.retry", "connect.retry_seconds"},
      {"checkpoint.seconds", "checkpoint.every_seconds"},
      {"data.target", "data.target_type"},
      // Typing errors.
      {"eval.evory", "eval.every"},
      {"run.sed", "run.seed"},
      {"keep.bst", "keep.best"},
      {"model.cut", "model.cuts"},
      {"train.epoch", "train.epochs"},
      {"train.btach", "train.batch"},
      {"train.Batch", "train.batch"},
      {"connect.retry_secnds", "connect.retry_seconds"},
      {"connct.retry_seconds", "connect.retry_seconds"},
      {"trian.batch", "train.batch"},
      {"data.augment.crop_pading", "data.augment.crop_padding"},
      // Other separators, and initials.
      {"train.learningrate", "train.learning_rate"},
      {"train.learning-rate", "train.learning_rate"},
      {"train.microbatches", "train.micro_batches"},
      {"train_batch", "train.batch"},
      {"train.lr", "train.learning_rate"},
      {"train.lr_schedule", "train.learning_rate.schedule"},
      {"train.wd", "train.optimizer.weight_decay"},
      {"train.batchsize", "train.batch"},
      // Sections too many, too few, or others.
      {"epochs", "train.epochs"},
      {"train.weight_decay", "train.optimizer.weight_decay"},
      {"train.label_smoothing", "train.loss.label_smoothing"},
      {"train.optimizer.learning_rate", "train.learning_rate"},
      {"model.rank", "model.lora.rank"},
      {"train.cuts", "model.cuts"},
      // No key is meant.
      {"connect.timeout_seconds", ""},
      {"data.path", ""},
      {"data.folds", ""},
      {"checkpoint.interval", ""},
      {"train.l2", ""},
      {"train.momentum", ""},
      {"train.seed", ""},  // one of two
      {"zzzzzzzz", ""},
      {"", ""},
      {std::string(1 << 20, 'x'), ""},
  };
  for (const auto& [typed, key] : meant) {
    INFO(typed.substr(0, 100));
    CHECK(nearestKey(typed, known) == key);
  }
}

TEST_CASE("a documented key that no code read has no effect, and its meaning is shown") {
  Config c = config("data: {format: idx, numeric: [a]}");
  c.text("data.format");
  const std::vector<DocumentedKey> documented = {
      {"data.format", "file format"}, {"data.numeric", "`csv`: columns of numbers. More text"}};
  const Refusal error = refusal([&] { c.refuseUnknown(documented); });
  CHECK_THAT(error.sentence, Contains("data.numeric has no effect"));
  CHECK_THAT(error.hint, Contains("csv: columns of numbers") && !Contains("More"));
}

TEST_CASE("if no key is near, the keys of the same section are listed") {
  const auto hint = [](const std::string& text) {
    Config c = config(text);
    for (const char* known : {"train.batch", "train.step", "eval.every"}) c.text(known, "");
    return refusal([&] { c.refuseUnknown(); }).hint;
  };
  CHECK_THAT(hint("train: {momentum: 1}"),
             Contains("train.batch, train.step") && !Contains("eval"));
  CHECK_THAT(hint("stuff: {momentum: 1}"), Contains("begin with eval, train"));
}

TEST_CASE("listing a map's keys does not make them known") {
  Config c = config("flows: {activation/0: none, gradient/9: none}");
  CHECK(c.keys("flows").size() == 2);
  c.text("flows.activation/0");
  CHECK_THAT(refusal([&] { c.refuseUnknown(); }).sentence,
             Contains("flows.gradient/9 is not a known key"));
}

TEST_CASE("an empty section is known only if something reads it") {
  Config c = config("train:\nflows: {}\ntrian:\nkeep: {}\n");
  c.integer("train.batch", 1, 8, 4);
  CHECK(c.keys("flows").empty());
  CHECK(c.keys("keep.best").empty());
  CHECK_THAT(refusal([&] { c.refuseUnknown(); }).sentence,
             Contains("configs/a.yaml:3: trian is not a known key"));
}

TEST_CASE("overrides replace values, add keys and replace maps") {
  Config c = config("train: {batch: 8}\nmodel: {name: mlp, widths: [1]}\nempty:\n",
                    {"train.batch=64", "train.batch=65", "new.deep.key=a=b", "model={name: cnn}",
                     "empty.x=[1, 2]", "codec=uniform:bits=4,group=64"});
  CHECK(c.integer("train.batch", 1, 100) == 65);
  CHECK(c.text("new.deep.key") == "a=b");
  CHECK(c.keys("model") == std::vector<std::string>{"name"});
  CHECK(c.text("model.name") == "cnn");
  CHECK(c.integers("empty.x", 1, 2).size() == 2);
  CHECK(c.text("codec") == "uniform:bits=4,group=64");
  CHECK_NOTHROW(c.refuseUnknown());
}

TEST_CASE("an override of a text key is taken as written") {
  const auto textOf = [](const std::string& value) {
    Config c = config("", {"a.b=" + value});
    const std::string read = c.text("a.b");
    CHECK(Config::parse(c.resolved(), "again", {}).text("a.b") == read);
    return read;
  };
  for (const std::string text :
       {"::", "[::]", "[::1]:4800", "::1", "fe80::1%eth0", "a: b", "photos #1", "*classifier*",
        "&x", "!x", "%x", "@x", "#x", "{a}", "[a]b", "010", "true", "a=b", "http://h:1"}) {
    INFO(text);
    CHECK(textOf(text) == text);
  }
  CHECK(textOf("\"[::]\"") == "[::]");
  CHECK(textOf("'a # b'") == "a # b");
  CHECK(textOf("  a  ") == "a");
  for (const char* empty : {"", " ", "~", "null"}) {
    Config c = config("", {std::string("a=") + empty});
    CHECK_THAT(refusal([&] { c.text("a"); }).sentence, Contains("a is empty, but must be text"));
  }
  // Keys of other types are still parsed.
  Config c = config("", {"list=[a, b]", "map={a: 1}", "number=[1]"});
  CHECK(c.texts("list") == std::vector<std::string>{"a", "b"});
  CHECK(c.integer("map.a", 0, 9) == 1);
  CHECK(refusal([&] { c.integer("number", 0, 9); }).sentence ==
        "--set number=[1]: number is a list, but must be an integer in 0…9");
}

TEST_CASE("a value that must be text in a file says when to quote it") {
  Config c = config("address: [::]");
  CHECK_THAT(refusal([&] { c.text("address"); }).hint, Contains("begins with a bracket"));
}

TEST_CASE("a key that has a value, and no keys of its own, says so") {
  Config c = config("", {"store.dir=/tmp"});
  CHECK(refusal([&] { c.text("store"); }).hint ==
        "set store to one value, without keys below it: --set store=VALUE; quote text that begins "
        "with a bracket");
}

TEST_CASE("errors give the override as the location") {
  Config c = config("train: {batch: 8}", {"train.batch=0", "trian.batch=1"});
  CHECK(refusal([&] { c.integer("train.batch", 1, 65536); }).sentence ==
        "--set train.batch=0: train.batch is '0', but must be an integer in 1…65536");
  CHECK(c.where("train.batch") == "--set train.batch=0");
  CHECK(c.where("train") == "configs/a.yaml:1");
  CHECK(c.where("absent") == "configs/a.yaml");
  c.text("train.batch");
  CHECK_THAT(refusal([&] { c.refuseUnknown(); }).sentence,
             Contains("--set trian.batch=1: trian.batch is not a known key; did you mean"));
}

TEST_CASE("malformed overrides are refused") {
  for (const char* override : {"train.batch", "=1", "train..batch=1", ".a=1", "a.=1", ""}) {
    CHECK(parseError("", {override}) == "--set " + std::string(override) + " is not KEY=VALUE");
  }
  CHECK_THAT(parseError("train:\n  batch: 8\n", {"train.batch.size=1"}),
             Contains("--set train.batch.size=1: batch is '8' (configs/a.yaml:2)"));
  CHECK_THAT(parseError("", {"a=[1"}), Contains("--set a=[1: "));
  CHECK_THAT(parseError("", {"a={b: 1, b: 2}"}), Contains("'b' appears twice"));
  CHECK_THAT(parseError("", {"a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a=1"}), Contains("not KEY=VALUE"));
}

TEST_CASE("text that is not YAML is refused with line and column") {
  CHECK_THAT(parseError("a: 1\nb: [1, 2\n"), Contains("configs/a.yaml:") && Contains("not valid"));
  CHECK_THAT(parseError("a:\n\tb: 1\n"),
             Contains("configs/a.yaml:2: the line is indented with a tab"));
  CHECK_THAT(parseError("a: 1\n--- \nb: 2\n"), Contains("more than one document"));
  CHECK_THAT(parseError("a: b: c\n"), Contains("configs/a.yaml:1:5: not valid YAML"));
  CHECK_THAT(parseError("just text"), Contains("configs/a.yaml:1: the file is 'just text'"));
  CHECK_THAT(parseError("- a\n- b\n"), Contains("the file is a list"));
}

TEST_CASE("a quote left open is refused, not closed by the end of the file") {
  for (const char* text : {"a: 'open", "a: 'open\n", "a: 'open\nb: 1\n", "a: \"open\n\n", "'a"}) {
    INFO(text);
    CHECK_THAT(parseError(text), Contains("not valid YAML"));
  }
  CHECK_THAT(parseError("", {"a='open"}), Contains("--set a='open: not valid YAML"));
  CHECK(config("a: |\n  text\n").text("a") == "text\n");
  CHECK(config("a: plain text").text("a") == "plain text");
}

TEST_CASE("a duplicate key is refused, with both lines") {
  CHECK(parseError("train:\n  batch: 1\n  rate: 2\n  batch: 3\n") ==
        "configs/a.yaml:4: 'batch' appears twice in the same map, first at configs/a.yaml:2");
  CHECK_THAT(parseError("list: [{a: 1, a: 2}]"), Contains("'a' appears twice"));
  CHECK_NOTHROW(config("a: {x: 1}\nb: {x: 1}\n"));
}

TEST_CASE("anchors, tags, unusual keys, too deep nesting and too large files are refused") {
  CHECK_THAT(parseError("a: &x 1\nb: *x\n"), Contains("configs/a.yaml:1: anchors and aliases"));
  CHECK_THAT(parseError("a: &a [*a, *a]\n"), Contains("anchors and aliases"));
  CHECK_THAT(parseError("a: !!str 5\n"), Contains("tags such as"));
  CHECK_THAT(parseError("? [a, b]\n: 1\n"), Contains("a key must be plain text"));
  CHECK_THAT(parseError("~: 1\n"), Contains("a key must be plain text"));
  CHECK_THAT(parseError("'': 1\n"), Contains("is empty or contains a dot"));
  CHECK_THAT(parseError("a: " + std::string(100, '[') + std::string(100, ']')),
             Contains("nested deeper than 16"));
  CHECK_THROWS_AS(config("a: " + std::string(100000, '[')), UsageError);
  CHECK_THROWS_AS(config("a: " + std::string(100000, '{')), UsageError);
  std::string dashes = "a:\n ";
  for (int i = 0; i < 100000; ++i) dashes += "- ";
  CHECK_THAT(parseError(dashes), Contains("nested deeper than 16"));
  CHECK_THAT(parseError(std::string(kMaxYamlBytes + 1, '#')), Contains("larger than 1 MiB"));
}

TEST_CASE("damaged YAML is refused or read, and never crashes") {
  const std::string good =
      "train:\n  batch: 64  # comment\n  names: [a, 'b', \"c\\n\"]\nmodel: {x: -1.5, y: ~}\nz: |\n "
      " t\n";
  REQUIRE_NOTHROW(config(good));
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char c : std::string("\t\n :-[]{}'\"&*!|>%@`#?,\\x\x80\xff") + '\0') {
      std::string damaged = good;
      damaged[i] = c;
      try {
        config(damaged);
      } catch (const UsageError&) {
        ++refused;
      }
    }
    try {
      config(good.substr(0, i));
    } catch (const UsageError&) {
      ++refused;
    }
  }
  CHECK(refused > 100);
}

TEST_CASE(
    "resolved values are grouped by map in the order of reading, and parse to the same values") {
  const std::vector<std::string> hard = {"",
                                         "true",
                                         "No",
                                         "null",
                                         "~",
                                         "64",
                                         "1e3",
                                         "0x1f",
                                         ".inf",
                                         "-",
                                         "a: b",
                                         "a #b",
                                         " a",
                                         "a ",
                                         "'a'",
                                         "\"a\"",
                                         "a\nb",
                                         "a\\b\t\r",
                                         "1:30",
                                         "[a]",
                                         "*a",
                                         "&a",
                                         "!a",
                                         "%a",
                                         "@a",
                                         "`a`",
                                         "a,b",
                                         "2026-01-31",
                                         "ü…",
                                         "a:",
                                         "y",
                                         "=",
                                         "<<",
                                         "? a",
                                         "| a",
                                         "\x01\x7f",
                                         "/a/b",
                                         "uniform:bits=4",
                                         "zstd:level=3(none)"};
  const std::vector<double> numbers = {
      0.1, 1.0 / 3, 1e-5, 1e22, 64, -0.0, 5e-324, 1.7976931348623157e308, INFINITY};

  Config c = config("b: {x: 2}\n");
  c.number("a.rate", 0, 1, 1e-5);
  c.integer("b.x", 0, 9);
  c.boolean("a.on", true);
  c.texts("a.names", hard);
  c.integers("top", 0, 9, std::vector<std::int64_t>{1, 2});
  CHECK_THAT(c.resolved(), Catch::StartsWith("a:\n  rate: 1.0e-05\n  \"on\": true\n  names: [") &&
                               Catch::EndsWith("b:\n  x: 2\ntop: [1, 2]\n"));
  for (std::size_t i = 0; i < hard.size(); ++i) c.text("texts.t" + std::to_string(i), hard[i]);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    c.number("numbers.n" + std::to_string(i), -INFINITY, INFINITY, numbers[i]);
  }

  Config again = config(c.resolved());
  CHECK(again.number("a.rate", 0, 1) == 1e-5);
  CHECK(again.integer("b.x", 0, 9) == 2);
  CHECK(again.boolean("a.on"));
  CHECK(again.texts("a.names") == hard);
  CHECK(again.integers("top", 0, 9).size() == 2);
  for (std::size_t i = 0; i < hard.size(); ++i) {
    CHECK(again.text("texts.t" + std::to_string(i)) == hard[i]);
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    CHECK(again.number("numbers.n" + std::to_string(i), -INFINITY, INFINITY) == numbers[i]);
  }
  CHECK_NOTHROW(again.refuseUnknown());
  CHECK(again.resolved() == c.resolved());
}

TEST_CASE("long and unprintable values are shortened in errors") {
  CHECK(quotedForError("a\nb\x1b") == "'a?b?'");
  const std::string shown = quotedForError(std::string(59, 'a') + "üüü");
  CHECK(shown == "'" + std::string(59, 'a') + "…'");
}

TEST_CASE("a configuration is read from a file, and errors contain the file's path") {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("cleave-config-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const std::string path = folder / "a.yaml";
  std::ofstream(path) << "train:\n  batch: 64\n";
  Config c = Config::load(path, {"train.rate=0.1"});
  CHECK(c.integer("train.batch", 1, 100) == 64);
  CHECK(c.where("train.batch") == path + ":2");
  CHECK_THAT(refusal([&] { Config::load(folder / "none.yaml", {}); }).sentence,
             Contains("none.yaml: cannot be read: No such file"));
  CHECK_THAT(refusal([&] { Config::load(folder, {}); }).sentence, Contains("cannot be read"));
  std::ofstream(path) << std::string(kMaxYamlBytes + 1, '#');
  CHECK_THAT(refusal([&] { Config::load(path, {}); }).sentence, Contains("larger than 1 MiB"));
  fs::remove_all(folder);
}

TEST_CASE("the nearest name is one that differs by a typing error, or there is none") {
  const std::vector<std::string> names = {"none", "uniform", "topk", "small_cnn"};
  CHECK(nearestName("unifrom", names) == "uniform");  // two letters swapped
  CHECK(nearestName("tpok", names) == "topk");  // one swap: the one error allowed in a short word
  CHECK(nearestName("smallcnn", names) == "small_cnn");
  CHECK(nearestName("none", names) == "none");
  CHECK(nearestName("adamW", {"adam", "adamw"}) == "adamw");
  CHECK(nearestName("zstd", names).empty());
  CHECK(nearestName("nxxe", names).empty());
  CHECK(nearestName("", names).empty());
  CHECK(nearestName(std::string(1 << 20, 'x'), names).empty());
}
