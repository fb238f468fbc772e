// Damaged rows, members and files, which `data check` lists without ending.
#include <catch2/catch.hpp>
#include <fstream>

#include "client/config/settings.h"
#include "client/data/pictures/image_file.h"
#include "client/run/temporary_folder.h"
#include "tests/support/error_code.h"

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
    const std::string key = format == "folder" ? "folder: " : "file: ";
    return openKeys("{format: " + format + ", train: {" + key + path("train." + extension) +
                    "}, test: {" + key + path("test." + extension) + "}" + keys + "}");
  }
  // `data`: all keys of the section.
  Datasets openKeys(const std::string& data) {
    Config config = Config::parse("model: {name: mlp}\ndata: " + data + "\n", "c.yaml", {});
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

std::string png() {
  const std::vector<std::byte> bytes = encodePng({2, 2, 3, std::vector<std::uint8_t>(12)});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

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
  CHECK(files.damage == Damage{"train train.csv too-few-classes", "test test.csv data-damaged"});
  CHECK(data.train == nullptr);
  // Without the training set, the rows of the test set are checked nevertheless.
  files.write("train.csv", "x,label\n1,\xE4\n2,b\n");
  files.write("test.csv", "x,label\n1,a\n1,2,a\n");
  CHECK(files.open("csv").train == nullptr);
  CHECK(files.damage == Damage{"train train.csv data-damaged", "test test.csv:3 data-damaged"});
  files.write("test.csv", "x,label\n1,\xE4\n");
  CHECK(files.open("csv").train == nullptr);
  CHECK(files.damage == Damage{"train train.csv data-damaged", "test test.csv data-damaged"});
  files.write("train.csv", "x,label\n1,a\n2,a\n");
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

TEST_CASE("all that is wrong with image folders is reported, and the other images are read") {
  Files files;
  files.extension = "d";
  for (const std::string name :
       {"train.d/a/1.png", "train.d/b/2.png", "train.d/b/3.png", "test.d/a/1.png", "test.d/B/2.png",
        "test.d/stray.png", "train.d/stray.png", "train.d/another.PNG"}) {
    files.write(name, png());
  }
  files.write("train.d/empty/notes.txt", "x");
  const Datasets data = files.open("folder");
  CHECK(files.damage == Damage{"train another.PNG data-damaged", "train stray.png data-damaged",
                               "train empty data-empty", "test stray.png data-damaged",
                               "test B unknown-class"});
  CHECK(data.train->size() == 3);
  CHECK(data.test->size() == 1);
}

TEST_CASE("damaged files and labels of binary formats are reported, and the others are read") {
  Files files;
  const std::string cifar = files.path("cifar");
  const std::string record(3073, '\0');
  for (const std::string n : {"1", "2", "3", "4", "5"})
    files.write("cifar/data_batch_" + n + ".bin", n == "2" ? "?" : record + record);
  std::string bad = record;
  bad[0] = '\x0A';
  files.write("cifar/data_batch_4.bin", record + bad + bad);
  files.write("cifar/test_batch.bin", record);
  Datasets data = files.openKeys("{format: cifar10, folder: " + cifar + "}");
  CHECK(files.damage == Damage{"train data_batch_2.bin data-damaged",
                               "train data_batch_4.bin data-damaged",
                               "train data_batch_4.bin data-damaged"});
  CHECK(data.train->size() == 9);

  using namespace std::string_literals;
  files.write("images", "\0\0\x08\x03\0\0\0\x03\0\0\0\x01\0\0\0\x01\x01\x02\x03"s);
  files.write("labels", "\0\0\x08\x01\0\0\0\x03\x09\x01\x08"s);
  const std::string split =
      "{images: " + files.path("images") + ", labels: " + files.path("labels") + "}";
  data = files.openKeys("{format: idx, classes: 2, train: " + split + ", test: " + split + "}");
  CHECK(files.damage == Damage{"train labels data-damaged", "train labels data-damaged",
                               "test labels data-damaged", "test labels data-damaged"});
  CHECK(data.train->size() == 3);

  files.write("shards/1.safetensors", "PK\x03\x04");
  files.write("shards/2.safetensors", "?");
  data = files.openKeys("{format: tensors, classes: 2, train: {file: " + files.path("shards") +
                        "}, holdout: 1}");
  CHECK(files.damage == Damage{"train 1.safetensors data-damaged",
                               "train 2.safetensors data-damaged", "train shards data-empty"});
  CHECK(data.train == nullptr);
}

TEST_CASE("damaged rows of lists and damaged members of archives are left out") {
  Files files;
  const std::string image = png();
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
    files.write("m/7.cls", "gr\xFC\x6E");
    files.write("m/7.png", image);
    files.write("m/6.tiff", "II*");
    files.write("m/6.cls", "a");
    files.write("m/5.png", image);
    REQUIRE(std::system(
                ("cd " + files.path("m") + " && tar cf ../" + name + " " + members).c_str()) == 0);
  };
  pack("train.tar",
       "1.png 1.cls 2.png 2.jpg 2.cls 3.png 4.cls 4.png 5.png 5.cls 6.tiff 6.cls 7.cls 7.png");
  pack("test.tar", "1.png 1.cls 4.cls");
  const Datasets data = files.open("tar");
  CHECK(files.damage == Damage{"train train.tar: 2 data-damaged", "train train.tar: 3 data-damaged",
                               "train train.tar: 5.cls bad-label",
                               "train train.tar: 7.cls data-damaged",
                               "test test.tar: 4 data-damaged"});
  CHECK(data.train->size() == 2);
  CHECK(data.test->size() == 1);
}

}  // namespace
}  // namespace cleave::test
