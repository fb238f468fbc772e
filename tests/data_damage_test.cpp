// Damaged rows, members and files, which `data check` lists without ending.
#include <catch2/catch.hpp>
#include <fstream>

#include "client/data/image_file.h"
#include "client/train/settings.h"
#include "client/train/temporary_folder.h"
#include "tests/error_code.h"

namespace cleave::test {
namespace {

using Damage = std::vector<std::string>;  // "train FILE:LINE CODE", without the folder

class Files {
 public:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
  }
  // Opens both splits, of which `keys` names the files.
  Datasets open(const std::string& format, const std::string& keys = "") {
    Config config =
        Config::parse("model: {name: mlp}\ndata: {format: " + format +
                          ", train: {file: " + path("train." + extension) +
                          "}, test: {file: " + path("test." + extension) + "}" + keys + "}\n",
                      "c.yaml", {});
    DataSettings settings = readClientSettings(config).data;
    damage.clear();
    settings.keys.damage = [&](DataSplit split, const std::string& name, const DataError& error) {
      const std::string file = name.substr(name.rfind('/') + 1);
      damage.push_back((split == DataSplit::train ? "train " : "test ") + file + " " +
                       error.code());
    };
    return openDatasets(settings);
  }
  std::string extension = "csv";
  Damage damage;

 private:
  TemporaryFolder folder_;
};

TEST_CASE("damaged rows of a table are reported once and left out") {
  Files files;
  files.write("train.csv",
              "x,y,label\n1,1.5,a\n2,oops,b\n,2.5,a\n4,3.5\n5,4.5,\n6,5.5,b\n7,6.5,a\n8,7.5,b\n");
  files.write("test.csv", "x,y,label\n1,1.5,a\n1,1.5,c\n1;2,1.5,a\n");
  const Datasets data = files.open("csv");
  CHECK(files.damage == Damage{"train train.csv:5 data-damaged", "train train.csv:3 data-damaged",
                               "train train.csv:4 missing-value", "train train.csv:6 bad-label",
                               "test test.csv:3 bad-label", "test test.csv:4 data-damaged"});
  CHECK(data.train->size() == 4);
  CHECK(data.train->sampleName(1).ends_with("train.csv:7"));
  CHECK(data.test->size() == 1);
}

TEST_CASE("an ambiguous column is reported, and the other columns are checked") {
  Files files;
  files.write("train.csv", "x;y;label\n1.5;1;a\n2,5;2;b\n3,5;n/a;a\n");
  files.write("test.csv", "x;y;label\n1.5;1;a\n");
  const Datasets data = files.open("csv");
  CHECK(files.damage ==
        Damage{"train train.csv ambiguous-number", "train train.csv:4 missing-value"});
  CHECK(data.train->arrays()[0].shape == std::vector<std::int64_t>{1});
  CHECK(data.test->size() == 1);
  files.write("train.csv", "x;label\n1.5;a\n2,5;b\n");
  CHECK(files.open("csv").train == nullptr);
  CHECK(files.damage.size() == 2);
}

TEST_CASE("what is wrong with a whole file is reported, and the other split is opened") {
  Files files;
  files.write("train.csv", "x,label\n1,a\n2,b\n");
  files.write("test.csv", "x,label\n\"1,a\n");
  Datasets data = files.open("csv");
  CHECK(files.damage == Damage{"test test.csv data-damaged"});
  CHECK(data.train->size() == 2);
  CHECK(data.test == nullptr);
  files.write("train.csv", "x,label\n1,a\n2,a\n");
  data = files.open("csv");
  CHECK(files.damage == Damage{"train train.csv too-few-classes"});
  CHECK(data.train == nullptr);
  // A wrong setting is an error.
  CHECK(errorCode([&] { files.open("csv", ", label: kind"); }) == "no-column");
  std::filesystem::remove(files.path("train.csv"));
  CHECK(errorCode([&] { files.open("csv"); }) == "data-missing");
  // Files that are no arrays.
  files.extension = "safetensors";
  files.write("train.safetensors", "PK\x03\x04 zip");
  CHECK(files.open("tensors").train == nullptr);
  CHECK(files.damage == Damage{"train train.safetensors data-damaged"});
}

TEST_CASE("damaged rows of lists and damaged members of archives are left out") {
  Files files;
  const std::vector<std::byte> png = encodePng({2, 2, 3, std::vector<std::uint8_t>(12)});
  const std::string image(reinterpret_cast<const char*>(png.data()), png.size());
  files.write("1.png", image);
  files.write("train.csv", "path,label\n1.png,a\n,b\n1.png,NaN\n1.png,b\n");
  files.write("test.csv", "path,label\n1.png,a\n1.png,B\n");
  CHECK(files.open("list").train->size() == 2);
  CHECK(files.damage == Damage{"train train.csv:3 data-damaged", "train train.csv:4 bad-label",
                               "test test.csv:3 bad-label"});

  files.extension = "tar";
  const auto pack = [&](const std::string& name, const std::string& members) {
    for (const std::string each : {"1.png", "2.png", "2.jpg", "3.png", "4.png"})
      files.write("m/" + each, image);
    for (const std::string each : {"1.cls", "2.cls", "4.cls", "5.cls"})
      files.write("m/" + each, each == "4.cls" ? "b" : each == "5.cls" ? "" : "a");
    files.write("m/6.tiff", "II*");
    files.write("m/6.cls", "a");
    files.write("m/5.png", image);
    REQUIRE(std::system(
                ("cd " + files.path("m") + " && tar cf ../" + name + " " + members).c_str()) == 0);
  };
  pack("train.tar", "1.png 1.cls 2.png 2.jpg 2.cls 3.png 4.cls 4.png 5.png 5.cls 6.tiff 6.cls");
  pack("test.tar", "1.png 1.cls 4.cls");
  const Datasets data = files.open("tar");
  CHECK(files.damage == Damage{"train train.tar: 2 data-damaged", "train train.tar: 3 data-damaged",
                               "train train.tar: 5.cls bad-label",
                               "test test.tar: 4 data-damaged"});
  CHECK(data.train->size() == 2);
  CHECK(data.test->size() == 1);
}

}  // namespace
}  // namespace cleave::test
