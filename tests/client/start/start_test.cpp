// The first configuration: the format of data, the size of images and batches, and the YAML.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "client/data/formats/formats.h"
#include "client/run/temporary_folder.h"
#include "client/start/data_description.h"
#include "client/start/first_config.h"
#include "client/start/found_data.h"
#include "common/config/config.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

class Files {
 public:
  explicit Files(const std::vector<std::string>& names) {
    for (const std::string& name : names) write(name, "x");
  }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
  }
  std::string path(const std::string& name = "") const {
    return name.empty() ? folder_.path() : folder_.path() + "/" + name;
  }
  // "format key=value key=value", with paths relative to the folder.
  std::string found(const std::string& name = "") const {
    const FoundData data = findData(path(name));
    std::string text = data.format;
    for (const auto& [key, value] : data.keys) {
      text +=
          " " + key + "=" +
          (value.starts_with(path()) ? std::filesystem::relative(value, path()).string() : value);
    }
    CHECK(data.hasTest ==
          (text.find("test.") != std::string::npos || data.format.starts_with("cifar")));
    return text;
  }
  std::string code(const std::string& name = "") const {
    return errorCode([&] { findData(path(name)); });
  }

 private:
  TemporaryFolder folder_;
};

TEST_CASE("images are found in class folders, with and without a test set") {
  CHECK(Files({"cat/1.jpg", "dog/a/2.PNG", "notes.txt"}).found() == "folder train.folder=.");
  CHECK(Files({"train/cat/1.jpg", "test/cat/2.jpg"}).found() ==
        "folder train.folder=train test.folder=test");
  CHECK(Files({"Training/cat/1.jpg", "Validation/cat/2.jpg"}).found() ==
        "folder train.folder=Training test.folder=Validation");
  CHECK(Files({"train/cat/1.jpg"}).found() == "folder train.folder=train");
  const Files three({"train/cat/1.jpg", "val/cat/2.jpg", "test/cat/2.jpg"});
  CHECK(three.found() == "folder train.folder=train test.folder=val");
  CHECK(findData(three.path()).unusedTest == three.path("test"));
  CHECK(findData(three.path() + "/").keys == findData(three.path()).keys);
}

TEST_CASE("archives, arrays, IDX and CIFAR files are found") {
  CHECK(Files({"a.tar", "b.tar"}).found() == "tar train.file=.");
  CHECK(Files({"train.tar", "test.tar"}).found() == "tar train.file=train.tar test.file=test.tar");
  CHECK(Files({"train/x.npy", "train/labels.npy", "test/x.npy"}).found() ==
        "tensors train.file=train test.file=test");
  CHECK(Files({"train.safetensors", "val.safetensors"}).found("train.safetensors") ==
        "tensors train.file=train.safetensors test.file=val.safetensors");
  CHECK(Files({"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte",
               "t10k-labels-idx1-ubyte"})
            .found() ==
        "idx train.images=train-images-idx3-ubyte.gz train.labels=train-labels-idx1-ubyte.gz "
        "test.images=t10k-images-idx3-ubyte test.labels=t10k-labels-idx1-ubyte");
  CHECK(Files({"train-images.idx3-ubyte", "train-labels.idx1-ubyte"}).found() ==
        "idx train.images=train-images.idx3-ubyte train.labels=train-labels.idx1-ubyte");
  CHECK(Files({"data_batch_1.bin", "test_batch.bin"}).found() == "cifar10 folder=.");
  CHECK(Files({"train.bin.gz", "test.bin.gz"}).found() == "cifar100 folder=.");
}

TEST_CASE("the columns of a table decide between images, texts and numbers") {
  const Files files({});
  files.write("train.csv", "path,label\na/1.jpg,cat\na/2.JPG,dog\n");
  files.write("test.csv", "path,label\na/3.jpg,cat\n");
  CHECK(files.found() == "list train.file=train.csv test.file=test.csv");
  CHECK(files.found("train.csv") == files.found());
  const Files renamed({});
  renamed.write("t.csv", "image,kind\n1.jpg,a\n");
  CHECK(renamed.code() == "unknown-data");
  CHECK_THAT(errorHint([&] { findData(renamed.path("t.csv")); }), Contains("path and label"));
  const Files table({});
  table.write("iris.tsv", "width\tClass\n1.5\ta\n2.5\tb\n");
  CHECK(table.found() == "csv train.file=iris.tsv label=Class");
  table.write("iris.tsv", "width\tkind\n1.5\ta\n2.5\tb\n");
  CHECK(table.found() == "csv train.file=iris.tsv label=kind");
  std::string prices = "rooms,price\n";
  for (int n = 0; n < 50; ++n) prices += "3," + std::to_string(n) + ".5\n";
  table.write("iris.tsv", "");
  const Files houses({});
  houses.write("houses.csv", prices);
  CHECK(houses.found() == "csv train.file=houses.csv label=price target_type=number");
  const Files texts({"tokenizer.json"});
  texts.write("train.csv", "label,review\ngood,a fine film\n");
  CHECK(texts.found() ==
        "text train.file=train.csv tokenizer=tokenizer.json text=review label=label");
  texts.write("train.csv", "label,words\ngood,a fine film\n");
  CHECK_THAT(texts.found(), Contains("text=words"));
}

TEST_CASE("a text in a column of numbers does not make it a column of texts") {
  const Files files({});
  const std::string text = GENERATE("-", "k.A.", "unbekannt", "12,5O");
  std::string rows = "area;kind\n";
  for (int n = 0; n < 50; ++n) {
    rows += (n == 7 ? text : std::to_string(n) + ",25") + ";" + (n % 2 == 0 ? "a" : "b") + "\n";
  }
  files.write("t.csv", rows);
  CAPTURE(text);
  CHECK(findData(files.path("t.csv")).ignored.empty());
  // As a target, it has values, not classes.
  CHECK(findData(files.path("t.csv"), "area").value("target_type") == "number");
}

TEST_CASE("columns that are no inputs are named, and the target may be given") {
  const Files files({});
  std::string rows = "id,day,age,town,notes,code,kind\n";
  for (int n = 0; n < 50; ++n) {
    const std::string number = std::to_string(n);
    rows += number + ",2024-05-0" + std::to_string(n % 9 + 1) + "," + std::to_string(n % 7) + "," +
            (n % 2 == 0 ? "Bonn" : "Ulm") + ",a patient with note " + number + ",x" + number + "," +
            (n % 3 == 0 ? "a" : "b") + "\n";
  }
  files.write("t.csv", rows);
  const FoundData found = findData(files.path("t.csv"));
  CHECK(found.value("label") == "kind");
  CHECK(found.hasInputs);
  std::vector<std::string> ignored;
  for (const auto& [name, reason] : found.ignored) ignored.push_back(name + ": " + reason);
  REQUIRE(ignored.size() == 4);
  CHECK_THAT(ignored[0], Contains("id: an ID"));
  CHECK_THAT(ignored[1], Contains("day: dates"));
  CHECK_THAT(ignored[2], Contains("notes: texts") && Contains("tokenizer.json"));
  CHECK_THAT(ignored[3], Contains("code: a different text in most rows"));
  CHECK(findData(files.path("t.csv"), "town").value("label") == "town");
  CHECK(errorCode([&] { findData(files.path("t.csv"), "towm"); }) == "no-column");
  CHECK_FALSE(findData(files.path("t.csv"), "id").value("target_type").empty());  // 50 integers

  // Numbers without the name of an ID, in any order; all rows count.
  std::string customers = "Kundennr,weight,nr,label\n";
  for (int n = 0; n < 300; ++n) {
    customers += std::to_string(5000 + n * 7 % 300) + "," + std::to_string(n) + ".5," +
                 std::to_string(n * n * 31 + 7) + "," + (n % 3 == 0 ? "a" : "b") + "\n";
  }
  files.write("c.csv", customers);
  const FoundData ids = findData(files.path("c.csv"));
  REQUIRE(ids.ignored.size() == 2);
  CHECK(ids.ignored[0].first == "Kundennr");
  CHECK(ids.ignored[1].first == "nr");
  FirstConfig config;
  config.data = ids;
  CHECK_THAT(yamlOf(config), Contains("  # - Kundennr: an ID, which differs in each row\n") &&
                                 Contains("  ignore: [Kundennr, nr]\n"));

  const auto kinds = [&](const std::string& name, const std::vector<std::string>& cells) {
    std::string table = name + ",label\n";
    for (std::size_t n = 0; n < cells.size(); ++n)
      table += "\"" + cells[n] + "\"," + (n % 2 == 0 ? "a" : "b") + "\n";
    files.write("k.csv", table);
    const FoundData data = findData(files.path("k.csv"));
    CHECK(data.hasInputs == data.ignored.empty());
    return data.ignored.empty() ? "input" : data.ignored.front().second.substr(0, 5);
  };
  CHECK(kinds("when", {"1.5.2024", "31.12.2023 10:30", ""}) == "dates");
  CHECK(kinds("when", {"05/01/24", "05/02/24"}) == "dates");
  CHECK(kinds("when", {"1.5.24", "31.12.23 10:30"}) == "dates");
  CHECK(kinds("when", {"24-05-01", "24-05-02"}) == "dates");
  CHECK(kinds("version", {"1.2.3", "1.2.4"}) == "input");
  CHECK(kinds("userId", {"7", "8"}) == "an ID");
  CHECK(kinds("user_id", {"7", "7"}) == "input");  // not different
  CHECK(kinds("paid", {"7", "8"}) == "input");
  std::vector<std::string> numbers;
  for (int n = 0; n < 150; ++n) numbers.push_back(std::to_string(n * 53 % 150));
  CHECK(kinds("customer", numbers) == "a dif");
  numbers.back() = numbers.front();  // after the first 100 rows
  CHECK(kinds("customer", numbers) == "input");
  CHECK(kinds("town", {"New York City", "New York City", "New York City"}) == "input");
}

TEST_CASE("a target with decimals, in any form, or of many integers is a number") {
  const Files files({});
  const auto target = [&](const std::string& name, const std::string& decimals, int values) {
    std::string table = "x;" + name + "\n";
    for (int n = 0; n < 60; ++n) table += "1;" + std::to_string(100 + n % values) + decimals + "\n";
    files.write("t.csv", table);
    return findData(files.path("t.csv")).value("target_type");
  };
  CHECK(target("price", ",25", 60) == "number");
  CHECK(target("price", ".25 €", 3) == "number");
  CHECK(target("price", "", 60) == "number");
  CHECK(target("price", "", 5).empty());
  CHECK(target("class", "", 60).empty());
}

TEST_CASE("a target that is a number is described if its scale makes training slow") {
  const Files files({});
  const auto described = [&](const std::string& offset) {
    std::string rows = "x,price\n";
    for (int n = 0; n < 40; ++n)
      rows += std::to_string(n) + "," + offset + std::to_string(n % 10) + ".5\n";
    files.write("t.csv", rows);
    DataFormatKeys keys;
    keys.trainFile = files.path("t.csv");
    keys.labelColumn = "price";
    keys.targetType = "number";
    return describeTarget(*findDataFormat("csv").open(keys, DataSplit::train));
  };
  CHECK(described("").empty());
  const std::string large = described("24800");
  CHECK_THAT(large, Contains("a mean of about 248005 and a std of about 2.9"));
  CHECK_THAT(large, Contains("write (value - 248005) / 2.9 into the column"));
  FirstConfig config;
  config.loss = "mse";
  config.lossComment = large;
  CHECK_THAT(yamlOf(config), Contains("  # The target has a mean of about 248005"));
  CHECK(Config::parse(yamlOf(config), "first.yaml", {}).text("train.loss") == "mse");
}

TEST_CASE("values that the user sets replace those that were chosen") {
  FirstConfig config;
  config.name = "t";
  config.madeFor = "cleave-client new";
  config.model = {{"name", "mlp"}, {"width", "64"}};
  config.data = {"csv", {{"train.file", "t.csv"}, {"label", "kind"}}, ""};
  config.data.ignored = {{"id", "an ID"}, {"the day", "dates"}};
  config.images = chooseImages({{480, 640}}, {});
  config.holdout = 3;
  config.batch = {8, 1};
  config.overrides = {"data.missing=mean",
                      "train.batch=16",
                      "data.augment={}",
                      "model.width=8",
                      "data.pad_token='<|end, of|>'",
                      "data.train.per_class=5",
                      "train.loss={label_smoothing: 0.1, name: [a, 'b c']}",
                      "train.loss.label_smoothing=0.2",
                      "codec=power:rank=2"};
  const std::string yaml = yamlOf(config);
  CAPTURE(yaml);
  Config parsed = Config::parse(yaml, "first.yaml", {});
  CHECK(parsed.text("data.missing") == "mean");
  CHECK(parsed.integer("train.batch", 1, 100) == 16);
  CHECK(parsed.integer("model.width", 1, 100) == 8);
  CHECK(parsed.text("model.name") == "mlp");
  CHECK(parsed.keys("data.augment").empty());
  CHECK(parsed.text("data.pad_token") == "<|end, of|>");
  CHECK(parsed.text("data.train.file") == "t.csv");
  CHECK(parsed.integer("data.train.per_class", 1, 100) == 5);
  CHECK(parsed.number("train.loss.label_smoothing", 0, 1) == 0.2);
  CHECK(parsed.texts("train.loss.name") == std::vector<std::string>{"a", "b c"});
  CHECK(parsed.text("codec") == "power:rank=2");
  CHECK(parsed.texts("data.ignore") == std::vector<std::string>{"id", "the day"});
}

TEST_CASE("data in no known format is refused with what it needs") {
  const auto hintOf = [](const Files& files, const std::string& name = "") {
    CHECK(files.code(name) == "unknown-data");
    return errorHint([&] { findData(files.path(name)); });
  };
  CHECK_THAT(hintOf(Files({"1.jpg", "2.jpg"})), Contains("name of its class"));
  CHECK_THAT(hintOf(Files({"cat/1.tiff", "dog/2.tiff"})), Contains("mogrify"));
  CHECK_THAT(hintOf(Files({"x.npy"}), "x.npy"), Contains("folder of the arrays"));
  CHECK_THAT(hintOf(Files({"x.xlsx"}), "x.xlsx"), Contains("docs/data.md"));
  CHECK_THAT(hintOf(Files({"a/readme"})), Contains("docs/data.md"));
  CHECK(Files({}).code("none") == "data-missing");
}

TEST_CASE("images get the size that the model takes, or one that suits a built-in model") {
  const auto text = [](const std::vector<ImageHeader>& sizes,
                       const std::optional<ImageInput>& model = std::nullopt) {
    const ImageChoice choice = chooseImages(sizes, model);
    return choice.builtIn + " " + std::to_string(choice.resize) + " " + std::to_string(choice.crop);
  };
  CHECK(text({{3000, 4000}, {480, 640}}) == "mobilenet_v2 256 224");
  CHECK(text({{100, 120}}) == "mobilenet_v2 96 96");
  CHECK(text({{28, 28}, {28, 28}}) == "small_cnn 0 0");
  CHECK(text({{28, 28}, {30, 28}}) == "small_cnn 32 32");
  CHECK(text({{480, 640}}, ImageInput{3, 224, 224}) == " 256 224");
  CHECK(text({{480, 640}}, ImageInput{3, 384, 384}) == " 439 384");
  CHECK(text({{480, 640}}, ImageInput{3, 64, 64}) == " 64 64");
  CHECK(text({{64, 64}}, ImageInput{3, 64, 64}) == " 0 0");
  CHECK(text({{48, 64}}, ImageInput{1, 48, 64}) == " 0 0");
  CHECK(errorCode([&] { text({{64, 64}}, ImageInput{3, 48, 64}); }) == "bad-input");
  CHECK_THAT(chooseImages({{3000, 4000}, {480, 640}}, {}).reason,
             Contains("640 x 480 to 4000 x 3000"));
}

TEST_CASE("a batch fits the training set, and leaves no tiny last batch") {
  const auto text = [](std::uint32_t samples) {
    const BatchChoice choice = chooseBatch(samples);
    CHECK(choice.batch >= 1);
    CHECK(choice.batch <= samples);
    CHECK(choice.microBatches >= 1);
    return std::to_string(choice.batch) + "/" + std::to_string(choice.microBatches);
  };
  CHECK(text(100'000) == "32/4");
  CHECK(text(40) == "8/1");
  CHECK(text(65) == "22/2");
  CHECK(text(7) == "7/1");
  CHECK(text(1) == "1/1");
  // Batch norm needs 8 samples in each micro-batch, also in those of an epoch's last batch.
  for (std::uint32_t samples = 8; samples < 3000; ++samples) {
    const BatchChoice choice = chooseBatch(samples);
    const std::uint32_t rest = samples % choice.batch;
    CAPTURE(samples, choice.batch, choice.microBatches);
    REQUIRE(choice.batch / choice.microBatches >= 8);
    REQUIRE((rest == 0 || rest / choice.microBatches >= 8));
  }
}

TEST_CASE("the configuration is valid YAML for any names") {
  FirstConfig config;
  config.name = "null";
  config.madeFor = "cleave-client new";
  config.model = {{"name", "mlp"}};
  for (const std::string path : {"photos/train", "a b", "1e5", "it's", "a,b", "-x", "{a}", "yes",
                                 "ümlaut", "a: b", "#a", ""}) {
    CAPTURE(path);
    config.data = {"folder", {{"train.folder", path}, {"label", path}}, ""};
    config.dataComment = std::string(300, 'a') + " b\tc";
    config.images = chooseImages({{480, 640}}, {});
    config.holdout = 3;
    config.batch = {8, 1};
    config.bestMetric = "top1";
    Config parsed = Config::parse(yamlOf(config), "first.yaml", {});
    CHECK(parsed.text("run.name") == "null");
    CHECK(parsed.text("data.train.folder") == path);
    CHECK(parsed.text("data.label") == path);
    CHECK(parsed.integer("data.resize", 0, 1000) == 256);
    CHECK(parsed.integer("data.holdout", 0, 1000) == 3);
    CHECK(parsed.text("keep.best") == "top1");
  }
}

}  // namespace
}  // namespace cleave::test
