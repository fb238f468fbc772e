// The data formats folder, list and tar, and the replacement of damaged samples.
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <set>

#include "client/data/formats/encoded_images.h"
#include "client/data/formats/formats.h"
#include "client/data/pictures/image_file.h"
#include "client/data/pictures/other_pictures.h"
#include "client/data/samples/check.h"
#include "client/data/samples/skip.h"
#include "client/run/temporary_folder.h"
#include "tests/support/error_code.h"
#include "tests/support/files/image_files.h"
#include "tests/support/files/samples.h"

namespace cleave::test {
namespace {

using Names = std::vector<std::string>;

// An image of one colour, by which tests identify it.
ImageBytes plain(std::uint8_t value, std::int64_t side = 4) {
  return encodePng(
      {side, side, 1, std::vector<std::uint8_t>(static_cast<std::size_t>(side * side), value)});
}

// The value of an image made by plain().
int valueOf(const Dataset& data, std::uint32_t index) {
  return static_cast<int>(std::lround(255 * readSample(data, index).front()));
}

struct Opened {
  DataFormatKeys keys;
  std::string format;
  std::shared_ptr<const Dataset> open(DataSplit split) const {
    return findDataFormat(format).open(keys, split);
  }
  std::string code(DataSplit split) const {
    return errorCode([&] { open(split); });
  }
  std::string text(DataSplit split) const {
    return errorText([&] { open(split); });
  }
};

// A training set of the classes cat (2 images) and dog (3), and a test set.
class Pets {
 public:
  Pets() {
    write("train/dog/2.PNG", plain(12));
    write("train/dog/10.jpeg", jpegOf(makePixels(4, 4, 3)));
    write("train/dog/more/a.png", plain(13));
    write("train/cat/1.png", plain(1));
    write("train/cat/b.webp", webpOf(makePixels(4, 4, 3)));
    write("train/cat/.hidden.png", {});
    write("train/.cache/x.png", {});
    write("test/dog/1.png", plain(50));
    keys.trainFolder = path("train");
    keys.testFolder = path("test");
    keys.channels = 1;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const ImageBytes& bytes) const {
    writeFile(path(name), bytes);
  }
  Opened with(const std::string& format = "folder") const { return {keys, format}; }

  DataFormatKeys keys;

 private:
  TemporaryFolder folder_;
};

Names namesIn(const Dataset& data, const std::string& folder) {
  Names names;
  for (std::uint32_t index = 0; index < data.size(); ++index) {
    const std::string name = data.sampleName(index);
    CHECK(name.starts_with(folder + "/"));
    names.push_back(name.substr(folder.size() + 1));
  }
  return names;
}

std::vector<std::int64_t> labelsIn(const Dataset& data) {
  std::vector<std::int64_t> labels;
  for (std::uint32_t index = 0; index < data.size(); ++index) {
    labels.push_back(data.label(index).value());
    CHECK(labelOf(data, index) == labels.back());
  }
  return labels;
}

// ---- folder ----

TEST_CASE(
    "folder: classes are sorted by name, and images have the order of torchvision's ImageFolder") {
  const Pets pets;
  const auto data = pets.with().open(DataSplit::train);
  CHECK(data->classNames() == Names{"cat", "dog"});
  CHECK(data->classes() == 2);
  CHECK(namesIn(*data, pets.path("train")) ==
        Names{"cat/1.png", "cat/b.webp", "dog/10.jpeg", "dog/2.PNG", "dog/more/a.png"});
  CHECK(labelsIn(*data) == std::vector<std::int64_t>{0, 0, 1, 1, 1});
  CHECK(data->arrays().front().shape == std::vector<std::int64_t>{1, 4, 4});
  CHECK(valueOf(*data, 0) == 1);
  CHECK(valueOf(*data, 3) == 12);
  CHECK(data->learned() == nlohmann::json{{"classes", {"cat", "dog"}}});
}

TEST_CASE("folder: the test set has the training set's class numbers") {
  const Pets pets;
  Opened opened = pets.with();
  opened.keys.learned = opened.open(DataSplit::train)->learned();
  const auto test = opened.open(DataSplit::test);
  CHECK(test->size() == 1);
  CHECK(test->classes() == 2);
  CHECK(test->label(0) == 1);
  pets.write("test/bird/1.png", plain(9));
  CHECK(opened.code(DataSplit::test) == "unknown-class");
  CHECK(opened.text(DataSplit::test).find("bird") != std::string::npos);
}

TEST_CASE("folder: a class that differs only by case is suggested") {
  const Pets pets;
  pets.write("test/Cat/1.png", plain(9));
  Opened opened = pets.with();
  opened.keys.learned = opened.open(DataSplit::train)->learned();
  try {
    opened.open(DataSplit::test);
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.code() == "unknown-class");
    CHECK(error.hint().find("rename Cat to cat") != std::string::npos);
  }
}

TEST_CASE("folder: folders without the expected contents are refused") {
  const Pets pets;
  const auto code = [&](const std::string& folder) {
    Opened opened = pets.with();
    opened.keys.trainFolder = pets.path(folder);
    opened.keys.testFolder = "";
    return opened.code(DataSplit::train);
  };
  CHECK(code("train").empty());
  CHECK(code("absent") == "data-missing");
  CHECK(code("train/dog/2.PNG") == "data-missing");
  CHECK(code("") == "data-damaged");  // the folders train and test would be taken for classes
  CHECK(code("test") == "too-few-classes");
  CHECK(code("train/dog") == "data-damaged");  // it has no class folders
  pets.write("text/a/notes.txt", {});
  CHECK(code("text") == "data-empty");
  std::filesystem::create_directories(pets.path("train/empty"));
  CHECK(code("train") == "data-empty");
}

TEST_CASE("folder: training and test set must not overlap") {
  const Pets pets;
  Opened opened = pets.with();
  opened.keys.testFolder = pets.path("train/");
  CHECK(opened.code(DataSplit::train) == "data-overlap");
  opened.keys.testFolder = pets.path("train/dog");
  CHECK(opened.code(DataSplit::train) == "data-overlap");
  opened.keys.testFolder = pets.path("");
  CHECK(opened.code(DataSplit::train) == "data-overlap");
  std::filesystem::create_directories(pets.path("train2"));
  opened.keys.testFolder = pets.path("train2");
  CHECK(opened.code(DataSplit::train).empty());
}

TEST_CASE(
    "folder: without a test set, samples are shuffled, so that the last ones can be held out") {
  const Pets pets;
  for (int n = 0; n < 60; ++n) pets.write("train/cat/m" + std::to_string(n) + ".png", plain(30));
  Opened opened = pets.with();
  const Names inOrder = namesIn(*opened.open(DataSplit::train), pets.path("train"));
  CHECK(std::is_sorted(inOrder.begin(), inOrder.end()));
  opened.keys.isShuffled = true;  // as with data.holdout or data.folds
  const auto data = opened.open(DataSplit::train);
  const Names names = namesIn(*data, pets.path("train"));
  CHECK_FALSE(std::is_sorted(names.begin(), names.end()));
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == 65);
  CHECK(namesIn(*opened.open(DataSplit::train), pets.path("train")) == names);
  for (std::uint32_t index = 0; index < data->size(); ++index) {
    CHECK(data->label(index) == (names[index].starts_with("dog") ? 1 : 0));
  }
}

TEST_CASE("folder: images of different sizes need data.resize") {
  const Pets pets;
  Opened opened = pets.with();
  pets.write("train/dog/z.png", plain(5));
  const auto data = opened.open(DataSplit::train);
  pets.write("train/dog/z.png", plain(7, 9));
  CHECK(errorCode([&] { readSample(*data, 4); }) == "sample-size");
  CHECK(errorCode([&] { readSample(*data, 3); }).empty());
  CHECK(errorCode([&] { opened.open(DataSplit::train); }) == "sample-size");
  opened.keys.image.resize = 6;
  const auto resized = opened.open(DataSplit::train);
  CHECK(resized->arrays().front().shape == std::vector<std::int64_t>{1, 6, 6});
  CHECK(valueOf(*resized, 4) == 7);
}

TEST_CASE("folder: a damaged first image does not determine the size") {
  const Pets pets;
  pets.write("train/cat/1.png", textBytes("?"));
  const auto data = pets.with().open(DataSplit::train);
  CHECK(data->arrays().front().shape == std::vector<std::int64_t>{1, 4, 4});
  CHECK(errorCode([&] { readSample(*data, 0); }) == "sample-damaged");
  std::filesystem::remove(pets.path("train/dog/2.PNG"));
  CHECK(errorText([&] { readSample(*data, 3); }).starts_with(data->sampleName(3)));
}

TEST_CASE(
    "folder: symbolic links to folders are followed, but not in cycles, and pipes do not block") {
  const Pets pets;
  pets.write("store/x.png", plain(80));
  std::filesystem::create_directory_symlink(pets.path("store"), pets.path("train/cat/linked"));
  std::filesystem::create_directory_symlink(pets.path("train"), pets.path("train/dog/circle1"));
  std::filesystem::create_directory_symlink(pets.path("train/dog"), pets.path("train/dog/circle2"));
  REQUIRE(::mkfifo(pets.path("train/dog/pipe.png").c_str(), 0600) == 0);
  const auto data = pets.with().open(DataSplit::train);
  REQUIRE(data->size() == 7);
  CHECK(valueOf(*data, 2) == 80);
  CHECK(data->sampleName(5) == pets.path("train/dog/pipe.png"));
  CHECK(errorCode([&] { readSample(*data, 5); }) == "sample-damaged");
}

TEST_CASE("folder: images are converted to the configured number of channels") {
  const Pets pets;
  Opened opened = pets.with();
  opened.keys.channels = 3;
  CHECK(opened.open(DataSplit::train)->arrays().front().shape ==
        std::vector<std::int64_t>{3, 4, 4});
  Config config = Config::parse("data:\n  train: {folder: a}\n  channels: 2\n", "data.yaml", {});
  CHECK(errorCode([&] { findDataFormat("folder").keys().readInto(config, opened.keys); }) ==
        "config-value");
}

TEST_CASE("inputs may be files and folders, and have the classes of the training set") {
  const Pets pets;
  for (const std::string format : {"folder", "list", "tar"}) {
    Opened opened = pets.with(format);
    opened.keys.learned = {{"classes", {"cat", "dog", "eel"}}};
    opened.keys.inputs = {pets.path("test/dog/1.png"), pets.path("train/dog")};
    const auto data = opened.open(DataSplit::input);
    CHECK(data->size() == 4);
    CHECK(data->classNames() == Names{"cat", "dog", "eel"});
    CHECK(labelOf(*data, 0) == 0);
    CHECK(data->sampleName(0) == pets.path("test/dog/1.png"));
    CHECK(data->sampleName(3) == pets.path("train/dog/more/a.png"));
    opened.keys.inputs = {pets.path("train/.cache/none")};
    CHECK(opened.code(DataSplit::input) == "sample-damaged");
    std::filesystem::create_directories(pets.path("empty"));
    opened.keys.inputs = {pets.path("empty")};
    CHECK(opened.code(DataSplit::input) == "data-empty");
    opened.keys.learned = nullptr;  // a model that was trained on another format
    opened.keys.inputs = {pets.path("train/dog")};
    CHECK(opened.code(DataSplit::input) == "data-damaged");
    if (format == "folder") CHECK(opened.code(DataSplit::test) == "data-damaged");
  }
}

// ---- list ----

class Listed {
 public:
  Listed() {
    for (int n = 0; n < 4; ++n) {
      pets.write("images/" + std::to_string(n) + ".png", plain(static_cast<std::uint8_t>(10 + n)));
    }
    opened.keys = pets.keys;
    opened.format = "list";
    opened.keys.trainFile = pets.path("train.csv");
    opened.keys.testFile = pets.path("test.csv");
  }
  void write(const std::string& text, const std::string& name = "train.csv") const {
    pets.write(name, textBytes(text));
  }
  std::shared_ptr<const Dataset> train(const std::string& text) const {
    write(text);
    return opened.open(DataSplit::train);
  }
  std::string code(const std::string& text) const {
    return errorCode([&] { train(text); });
  }

  Pets pets;
  Opened opened;
};

TEST_CASE(
    "list: paths are relative to the list, columns may be in any order, and cells may be quoted") {
  Listed listed;
  for (const std::string text :
       {"path,label\nimages/0.png,b\nimages/1.png,a\nimages/3.png,b\n",
        "\xEF\xBB\xBFlabel,note,path\r\nb,\"x, \"\"y\"\"\",images/0.png\r\na,,\"images/1.png\"\r\n"
        "\r\nb,,images/3.png",
        "path\tlabel\nimages/0.png\tb\nimages/1.png\ta\nimages/3.png\tb\n"}) {
    CAPTURE(text);
    const auto data = listed.train(text);
    CHECK(data->classNames() == Names{"a", "b"});
    CHECK(labelsIn(*data) == std::vector<std::int64_t>{1, 0, 1});
    CHECK(valueOf(*data, 0) == 10);
    CHECK(valueOf(*data, 2) == 13);
    CHECK(data->sampleName(1) == listed.pets.path("images/1.png"));
  }
  const std::string absolute = listed.pets.path("images/2.png");
  CHECK(valueOf(*listed.train("path,label\n" + absolute + ",0\nimages/1.png,1\n"), 0) == 12);
}

TEST_CASE("list: labels are read as in tables: class numbers from 0, or names") {
  Listed listed;
  const auto data = listed.train("path,label\nimages/0.png,4.0\nimages/1.png,0.0\n");
  CHECK(data->classNames() == Names{"0.0", "1", "2", "3", "4.0"});
  CHECK(labelsIn(*data) == std::vector<std::int64_t>{4, 0});
  listed.opened.keys.learned = data->learned();
  listed.write("path,label\nimages/2.png,02\nimages/2.png,3\n", "test.csv");
  CHECK(labelsIn(*listed.opened.open(DataSplit::test)) == std::vector<std::int64_t>{2, 3});
  listed.write("path,label\nimages/2.png,11\n", "test.csv");
  CHECK(listed.opened.code(DataSplit::test) == "bad-label");
  CHECK_THAT(listed.opened.text(DataSplit::test), Catch::Contains("test.csv:2: "));
  CHECK(listed.train("path,label\nimages/0.png,10\nimages/1.png,2\n")->classNames() ==
        Names{"2", "10"});
  CHECK(listed.code("path,label\nimages/0.png,1048576\nimages/1.png,0\n") == "too-many-classes");
  CHECK(listed.train("path,label\nimages/0.png,10\nimages/1.png,2x\n")->classNames() ==
        Names{"10", "2x"});
}

TEST_CASE("list: damaged lists are refused") {
  const Listed listed;
  CHECK(listed.opened.code(DataSplit::train) == "data-missing");
  CHECK(listed.code("") == "data-empty");
  CHECK(listed.code("path,label\n") == "data-empty");
  CHECK(listed.code("images/0.png,a\nimages/1.png,b\n") == "no-column");
  CHECK(listed.code("path,class\nimages/0.png,a\n") == "no-column");
  CHECK(listed.code("path,label\nimages/0.png\n") == "data-damaged");
  CHECK(listed.code("path,label\nimages/0.png,a,b\n") == "data-damaged");
  CHECK(listed.code("path,label\nimages/0.png,\"a\n") == "data-damaged");
  CHECK(listed.code("path,label\n,a\n") == "data-damaged");
  CHECK(listed.code("path,label\nimages/0.png,\nimages/1.png,b\n") == "bad-label");
  CHECK(listed.code("path,label\nimages/0.png,a\nimages/1.png, N/A \n") == "bad-label");
  CHECK(listed.code("path,label\nimages/0.png,a\x01\nimages/1.png,b\n") == "data-damaged");
  CHECK(listed.code("path,label\nimages/0.png,a\nimages/1.png,a\n") == "too-few-classes");
  CHECK(listed.code("path,label\nabsent.png,a\nabsent.png,b\n") == "sample-damaged");
  try {
    listed.train("path,label\nimages/0.png,a\nimages/0.png\n");
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(std::string(error.what()).find("train.csv:3: ") != std::string::npos);
  }
  Opened folder = listed.opened;
  folder.keys.trainFile = listed.pets.path("images");
  CHECK(folder.code(DataSplit::train) == "data-missing");
}

// ---- tar ----

struct TarMember {
  std::string name;
  ImageBytes bytes;
};

// Makes an archive with GNU tar; `format` is pax, gnu or ustar.
void writeTar(const std::string& path, const std::vector<TarMember>& members,
              const std::string& format = "pax") {
  const TemporaryFolder folder;
  std::string command = "tar --format=" + format + " -cf '" + path + "' -C " + folder.path();
  for (const TarMember& member : members) {
    writeFile(folder.path() + "/" + member.name, member.bytes);
    command += " '" + member.name + "'";
  }
  REQUIRE(std::system(command.c_str()) == 0);
}

std::vector<TarMember> goodMembers() {
  return {{"a/0001.png", plain(1)},
          {"a/0001.cls", textBytes("dog\n")},
          {"a/0001.json", textBytes("{}")},
          {"a/0002.cls", textBytes("cat")},
          {"a/0002.png", plain(2)},
          {"b/0002.v1.png", plain(3)},
          {"b/0002.cls", textBytes("dog")},
          {"readme.txt", textBytes("x")},
          {"dir/._x.png", {}}};
}

TEST_CASE("tar: consecutive members with the same key form a sample, in every tar format") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  opened.keys.trainFile = pets.path("train.tar");
  opened.keys.testFile = pets.path("test.tar");
  for (const std::string kind : {"pax", "gnu", "ustar"}) {
    CAPTURE(kind);
    std::vector<TarMember> members = goodMembers();
    if (kind != "ustar") {
      const std::string key(180, 'k');  // a name this long needs an extra header
      members.push_back({key + ".png", plain(77)});
      members.push_back({key + ".cls", textBytes("cat")});
    }
    writeTar(pets.path("train.tar"), members, kind);
    const auto data = opened.open(DataSplit::train);
    REQUIRE(data->size() == (kind == "ustar" ? 3 : 4));
    CHECK(data->classNames() == Names{"cat", "dog"});
    CHECK(data->sampleName(0) == pets.path("train.tar") + ": a/0001.png");
    for (std::uint32_t index = 0; index < 3; ++index) {
      CHECK(valueOf(*data, index) == static_cast<int>(index) + 1);
      CHECK(labelOf(*data, index) == (index == 1 ? 0 : 1));
    }
    if (data->size() == 4) CHECK(valueOf(*data, 3) == 77);
  }
}

TEST_CASE("tar: a folder of shards is read in order, and numeric labels are class numbers") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  std::filesystem::create_directories(pets.path("shards"));
  const auto shard = [&](int number, const std::string& label) {
    writeTar(pets.path("shards/" + std::to_string(number) + ".tar"),
             {{"x.png", plain(static_cast<std::uint8_t>(number))}, {"x.cls", textBytes(label)}});
  };
  shard(2, "4");
  shard(1, "0");
  opened.keys.trainFile = pets.path("shards");
  opened.keys.testFile = pets.path("shards");
  const auto data = opened.open(DataSplit::train);
  CHECK(data->classes() == 5);
  CHECK(labelsIn(*data) == std::vector<std::int64_t>{0, 4});
  CHECK(valueOf(*data, 0) == 1);
  std::filesystem::resize_file(pets.path("shards/1.tar"), 512);
  CHECK(errorCode([&] { readSample(*data, 0); }) == "sample-damaged");
}

TEST_CASE("tar: images with a further field are ignored beside the sample's image") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  opened.keys.trainFile = pets.path("train.tar");
  writeTar(pets.path("train.tar"), {{"1.seg.png", plain(90)},
                                    {"1.png", plain(1)},
                                    {"1.cls", textBytes("0.0")},
                                    {"2.cls", textBytes("1.0")},
                                    {"2.png", plain(2)},
                                    {"2.seg.png", plain(91)},
                                    {"2.depth.webp", plain(92)}});
  const auto data = opened.open(DataSplit::train);
  REQUIRE(data->size() == 2);
  CHECK(valueOf(*data, 0) == 1);
  CHECK(valueOf(*data, 1) == 2);
  CHECK(labelsIn(*data) == std::vector<std::int64_t>{0, 1});
  writeTar(pets.path("train.tar"),
           {{"1.png", plain(1)}, {"1.jpg", plain(1)}, {"1.cls", textBytes("0")}});
  CHECK_THAT(opened.text(DataSplit::train), Catch::Contains("several images for 1: png, jpg"));
  writeTar(pets.path("train.tar"),
           {{"1.a.png", plain(1)}, {"1.b.png", plain(1)}, {"1.cls", textBytes("0")}});
  CHECK_THAT(opened.text(DataSplit::train), Catch::Contains("a.png, b.png"));
}

TEST_CASE("tar: samples whose picture cannot be read are skipped, and counted by extension") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  opened.keys.trainFile = pets.path("train.tar");
  std::vector<TarMember> members = goodMembers();
  const std::size_t good = members.size();
  members.push_back({"c/1.tiff", textBytes("II*")});
  members.push_back({"c/1.cls", textBytes("dog")});
  members.push_back({"c/2.cls", textBytes("dog")});
  members.push_back({"c/2.scan.BMP", textBytes("BM")});
  members.push_back({"c/3.png", plain(4)});
  members.push_back({"c/3.tiff", textBytes("II*")});
  members.push_back({"c/3.cls", textBytes("dog")});
  writeTar(pets.path("train.tar"), members);
  CHECK(opened.open(DataSplit::train)->size() == 4);
  members.erase(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(good));
  members.resize(4);
  writeTar(pets.path("train.tar"), members);
  CHECK(opened.code(DataSplit::train) == "data-empty");
  CHECK_THAT(opened.text(DataSplit::train),
             Catch::Contains("only other pictures: 1 .tiff, 1 .bmp"));
}

TEST_CASE("tar: hard and symbolic links to members are read") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  opened.keys.trainFile = pets.path("train.tar");
  pets.write("tree/a/1.png", plain(5));
  pets.write("tree/a/1.cls", textBytes("x"));
  pets.write("tree/a/3.cls", textBytes("y"));
  std::filesystem::create_hard_link(pets.path("tree/a/1.png"), pets.path("tree/a/2.png"));
  std::filesystem::create_hard_link(pets.path("tree/a/1.cls"), pets.path("tree/a/2.cls"));
  std::filesystem::create_symlink("../b/last.bin", pets.path("tree/a/3.png"));
  pets.write("tree/b/last.bin", plain(7));
  const auto pack = [&](const std::string& members) {
    REQUIRE(std::system(
                ("tar -C " + pets.path("tree") + " -cf " + pets.path("train.tar") + " " + members)
                    .c_str()) == 0);
  };
  pack("./a/1.png ./a/1.cls ./a/2.png ./a/2.cls ./a/3.cls ./a/3.png ./b/last.bin");
  const auto data = opened.open(DataSplit::train);
  REQUIRE(data->size() == 3);
  for (const std::uint32_t index : {0u, 1u}) CHECK(valueOf(*data, index) == 5);
  CHECK(valueOf(*data, 2) == 7);
  CHECK(labelsIn(*data) == std::vector<std::int64_t>{0, 0, 1});
  pack("./a/1.png ./a/1.cls ./a/3.cls ./a/3.png");
  CHECK_THAT(opened.text(DataSplit::train), Catch::Contains("a link, ./a/3.png, to ../") ||
                                                Catch::Contains("a link, a/3.png, to b/last.bin"));
}

TEST_CASE("tar: damaged archives are refused") {
  const Pets pets;
  Opened opened{pets.keys, "tar"};
  opened.keys.trainFile = pets.path("train.tar");
  const auto code = [&](const std::vector<TarMember>& members) {
    writeTar(pets.path("train.tar"), members);
    return opened.code(DataSplit::train);
  };
  CHECK(opened.code(DataSplit::train) == "data-missing");
  pets.write("train.tar", {});
  CHECK(opened.code(DataSplit::train) == "data-empty");
  pets.write("train.tar", textBytes("no archive"));
  CHECK(opened.code(DataSplit::train) == "data-damaged");
  for (const std::string magic : {"\x1F\x8B\x08", "BZh9", "\x28\xB5\x2F\xFD"}) {
    pets.write("train.tar", textBytes(magic));
    CHECK(opened.text(DataSplit::train).find("is compressed") != std::string::npos);
  }
  CHECK(code({{"a.txt", textBytes("x")}}) == "data-empty");
  CHECK(code({{"a.png", plain(1)}, {"b.cls", textBytes("0")}}) == "data-damaged");
  CHECK(code({{"a.cls", textBytes("0")}}) == "data-damaged");
  CHECK(code({{"a.png", plain(1)}, {"a.jpg", plain(1)}, {"a.cls", textBytes("0")}}) ==
        "data-damaged");
  CHECK(code({{"a.png", plain(1)}, {"a.cls", ImageBytes(2000)}}) == "data-damaged");
  CHECK(code({{"a.png", plain(1)}, {"a.cls", {}}}) == "bad-label");
  CHECK(code({{"a.png", plain(1)}, {"a.cls", textBytes("NaN\n")}}) == "bad-label");
  CHECK_THAT(opened.text(DataSplit::train), Catch::Contains("train.tar: a.cls: "));
  CHECK(code({{"a.png", plain(1)}, {"a.cls", textBytes("x")}}) == "too-few-classes");
  writeTar(pets.path("train.tar"), goodMembers());
  std::filesystem::resize_file(pets.path("train.tar"),
                               std::filesystem::file_size(pets.path("train.tar")) / 2 + 100);
  CHECK_FALSE(opened.code(DataSplit::train).empty());
}

// ---- Damaged samples ----

TEST_CASE("a damaged sample is replaced by the next readable one, in any order of reads") {
  const Pets pets;
  for (int n = 0; n < 5; ++n) {
    pets.write("train/cow/" + std::to_string(n) + ".png", plain(static_cast<std::uint8_t>(60 + n)));
  }
  pets.write("train/cow/1.png", textBytes("?"));
  pets.write("train/cow/2.png", {});
  std::filesystem::remove_all(pets.path("train/dog"));
  const std::shared_ptr<const Dataset> whole = pets.with().open(DataSplit::train);
  REQUIRE(whole->size() == 7);
  for (const bool forwards : {true, false}) {
    const auto data = skipDamaged(whole, 2);
    for (std::uint32_t n = 0; n < 7; ++n) {
      const std::uint32_t index = forwards ? n : 6 - n;
      const std::uint32_t from = index == 3 || index == 4 ? 5 : index;
      CHECK(sampleOf(*data, index).values == sampleOf(*whole, from).values);
    }
    CHECK(data->sampleName(3) == whole->sampleName(3));
    CHECK(data->learned() == whole->learned());
    CHECK(data->classNames() == whole->classNames());
  }
}

TEST_CASE(
    "more damaged samples than data.skip are an error, and the first sample can replace the last") {
  const Pets pets;
  pets.write("train/dog/more/a.png", {});
  pets.write("train/dog/2.PNG", {});
  const std::shared_ptr<const Dataset> whole = pets.with().open(DataSplit::train);
  CHECK(sampleOf(*skipDamaged(whole, 2), 4).values == sampleOf(*whole, 0).values);
  const auto one = skipDamaged(whole, 1);
  CHECK(errorCode([&] { readSample(*one, 3); }) == "sample-damaged");
  CHECK(errorText([&] { readSample(*one, 3); }).find("data.skip allows 1") != std::string::npos);
  CHECK(skipDamaged(whole, 0) == whole);
}

TEST_CASE("only damage is skipped") {
  const Pets pets;
  const auto data = skipDamaged(pets.with().open(DataSplit::train), 100);
  pets.write("train/dog/2.PNG", plain(5, 8));
  CHECK(errorCode([&] { readSample(*data, 3); }) == "sample-size");
}

TEST_CASE("folder: skipped files are counted by extension, with a command that converts pictures") {
  const Pets pets;
  for (const std::string name :
       {"dog/scan.tiff", "dog/scan2.TIFF", "cat/old.bmp", "Thumbs.db", "cat/notes", "cat/x.txt"}) {
    pets.write("train/" + name, textBytes("II*"));
  }
  const FoundImages found = findImages(pets.path("train"));
  CHECK(found.paths.size() == 5);
  CHECK(found.skipped.text() == "2 .tiff, 1 .bmp, 1 without extension, 1 .db, 1 .txt");
  CHECK(found.skipped.hint("a b") ==
        "convert the pictures with ImageMagick: find 'a b' \\( -iname '*.bmp' -o -iname '*.tiff' "
        "\\) -exec mogrify -format png {} +");
  CHECK(pets.with().code(DataSplit::train).empty());
}

TEST_CASE("the text about skipped files is bounded") {
  SkippedFiles files;
  CHECK(files.isEmpty());
  for (int n = 0; n < 5000; ++n) files.add("dir.x/file.e" + std::to_string(n));
  files.add("a/.hidden");
  files.add("a/name.");
  files.add("a/name.\x01");
  files.add("a/scan.nii.gz");
  CHECK_FALSE(files.hasPictures());
  CHECK(files.text().starts_with("4004 without extension, 1 .e0, "));
  CHECK(files.text().ends_with(" others"));
  SkippedFiles scans;
  scans.add("a/scan.nii.gz");
  scans.add("a/b.dcm");
  CHECK(scans.text() == "1 .dcm, 1 .nii.gz");
  CHECK(scans.hint("a").find("docs/data.md#dicom-and-nifti") != std::string::npos);
  CHECK(scans.hint("") == scans.hint("a"));
  SkippedFiles one;
  one.add("x.gif");
  CHECK(one.hint("-a'b") ==
        "convert the pictures with ImageMagick: find ./'-a'\\''b' -iname '*.gif' -exec mogrify "
        "-format png {} +");
}

TEST_CASE("folder: a class with only other pictures is refused with the way to convert them") {
  const Pets pets;
  pets.write("train/owl/1.heic", textBytes("x"));
  CHECK(pets.with().text(DataSplit::train).ends_with("has no images, only other files: 1 .heic"));
  CHECK(errorHint([&] { pets.with().open(DataSplit::train); }).find("mogrify") !=
        std::string::npos);
}

TEST_CASE("pictures of other formats are named by their content") {
  using namespace std::string_literals;
  for (const auto& [content, format] : std::vector<std::pair<std::string, std::string>>{
           {"II*\0..."s, "TIFF"},
           {"MM\0*..."s, "TIFF"},
           {"BM......", "BMP"},
           {"GIF89a..", "GIF"},
           {"\0\0\0\x18"
            "ftypheic"s,
            "HEIC"},
           {"\0\0\0\x18"
            "ftypavif"s,
            "AVIF"},
           {std::string(128, '\0') + "DICM", "DICOM"},
           {std::string(344, '\0') + "n+1\0"s, "NIfTI"},
           {"text", ""},
           {"", ""}}) {
    const ImageBytes bytes = textBytes(content);
    CHECK(otherPictureFormat(bytes) == format);
    if (format.empty()) continue;
    CHECK(errorText([&] { readImageHeader(bytes, "a.jpg"); }) ==
          "a.jpg is a " + format + " file, not JPEG, PNG or WebP");
  }
  CHECK(conversionHint("TIFF").find("mogrify") != std::string::npos);
  CHECK(conversionHint("DICOM").find(".npy") != std::string::npos);
}

TEST_CASE("all samples are checked, and damaged ones are listed in order") {
  const Pets pets;
  const auto data = pets.with().open(DataSplit::train);
  pets.write("train/dog/2.PNG", textBytes("BM, which is not read"));
  pets.write("train/cat/1.png", {});
  pets.write("train/dog/more/a.png", plain(5, 8));
  for (const std::uint32_t threads : {1u, 4u}) {
    Names found;
    std::uint32_t done = 0;
    CheckOptions options;
    options.threads = threads;
    options.found = [&](const DamagedSample& sample) {
      CHECK(data->sampleName(sample.index) == sample.name);
      found.push_back(sample.name.substr(pets.path("train").size() + 1) + ": " + sample.reason);
    };
    options.progress = [&](std::uint32_t samples) { done = samples; };
    CHECK(checkSamples(data, options) == 3);
    CHECK(done == 5);
    CHECK(found == Names{"cat/1.png: is empty", "dog/2.PNG: is a BMP file, not JPEG, PNG or WebP",
                         "dog/more/a.png: has 8 x 8 pixels, but another image of the data has 4 x "
                         "4, and the model needs one size"});
  }
}

// Samples of two floats, one of which is not finite.
class NotFinite final : public LabeledDataset {
 public:
  std::uint32_t size() const override { return 1000; }
  std::vector<std::int64_t> sampleShape() const override { return {2}; }
  int classes() const override { return 2; }
  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    out[0] = index % 100 == 7 ? NAN : 1;
    out[1] = index == 107 ? INFINITY : 1;
    return 0;
  }
};

TEST_CASE("values that are not finite count as damage") {
  Names found;
  CheckOptions options;
  options.threads = 3;
  options.found = [&](const DamagedSample& sample) {
    found.push_back(sample.name + " " + sample.reason);
  };
  CHECK(checkSamples(std::make_shared<NotFinite>(), options) == 10);
  REQUIRE(found.size() == 10);
  CHECK(found[0] == "sample 7 has a value that is not finite");
  CHECK(found[1] == "sample 107 has 2 values that are not finite");
}

}  // namespace
}  // namespace cleave::test
