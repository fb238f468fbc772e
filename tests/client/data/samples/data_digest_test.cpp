// What counts as a change of the data when a run is resumed, in every data format.
#include "client/data/samples/data_digest.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "client/data/formats/formats.h"
#include "client/data/pictures/image_file.h"
#include "client/data/samples/skip.h"
#include "client/data/samples/subset.h"
#include "client/run/temporary_folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

// A training set in a folder of its own.
class Data {
 public:
  explicit Data(std::string format) : format_(std::move(format)) {}
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::shared_ptr<const Dataset> open() const {
    return findDataFormat(format_).open(keys, DataSplit::train);
  }
  DataDigest digest() const { return digestOf(*open()); }
  // The digest after the file has this content. Restores the file.
  DataDigest with(const std::string& name, const std::string& content) const {
    std::ifstream file(path(name), std::ios::binary);
    const std::string before(std::istreambuf_iterator<char>(file), {});
    write(name, content);
    DataDigest changed = digest();
    write(name, before);
    return changed;
  }

  DataFormatKeys keys;

 private:
  const std::string format_;
  TemporaryFolder folder_;
};

// A picture whose file ends with these bytes.
std::string picture(const std::string& more = "", std::uint8_t grey = 1) {
  const std::vector<std::byte> png = encodePng({4, 4, 1, std::vector<std::uint8_t>(16, grey)});
  return std::string(reinterpret_cast<const char*>(png.data()), png.size()) + more;
}

TEST_CASE("folder: moved, added, renamed, removed and replaced pictures are a change") {
  Data data("folder");
  data.keys.trainFolder = data.path("pets");
  for (const std::string name : {"cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png"})
    data.write("pets/" + name, picture());
  const DataDigest before = data.digest();
  CHECK(before.samples == 4);
  CHECK(data.digest() == before);
  const auto rename = [&](const std::string& from, const std::string& to) {
    fs::rename(data.path("pets/" + from), data.path("pets/" + to));
  };
  rename("cat/2.png", "dog/2.png");
  CHECK(changeSince(before, data.digest()) == "has other samples, labels or file sizes than");
  rename("dog/2.png", "cat/2.png");
  CHECK(data.digest() == before);
  data.write("pets/cat/9.png", picture());
  CHECK(changeSince(before, data.digest()) == "has 5 samples, but had 4");
  fs::remove(data.path("pets/cat/9.png"));
  rename("cat/2.png", "cat/7.png");
  CHECK(data.digest() != before);
  rename("cat/7.png", "cat/2.png");
  CHECK(data.with("pets/cat/1.png", picture("longer")) != before);
  CHECK(data.with("pets/cat/1.png", picture()) == before);
  // Another picture of the same size.
  const std::string other = picture("", 7);
  REQUIRE(other.size() == picture().size());
  const DataDigest replaced = data.with("pets/cat/1.png", other);
  CHECK(changeSince(before, replaced) == "has other content in its samples than");
  CHECK(changeSince({before.samples, before.sha256, ""}, replaced).empty());  // an earlier version
  data.write("pets/dog/large.png", picture(std::string(100'000, 'x')));
  const DataDigest large = data.digest();
  for (const std::size_t at : {50'000, 100'000}) {  // the middle and the end
    std::string more(100'000, 'x');
    more[at - 1] = 'y';
    CHECK(data.with("pets/dog/large.png", picture(more)) != large);
  }
  fs::remove(data.path("pets/dog/large.png"));
  rename("dog", "fox");
  CHECK(data.digest() != before);
  rename("fox", "dog");

  // The folder may move.
  rename("../pets", "../moved");
  data.keys.trainFolder = data.path("moved/");
  CHECK(data.digest() == before);
  // In a random order, for held-out samples.
  data.keys.isShuffled = true;
  const DataDigest shuffled = data.digest();
  CHECK(shuffled != before);
  CHECK(data.digest() == shuffled);
  CHECK(changeSince({}, before).empty());  // an earlier version wrote no digest
}

TEST_CASE("list and tar: relabelled samples are a change") {
  Data list("list");
  for (const std::string name : {"1.png", "2.png"}) list.write(name, picture());
  list.keys.trainFile = list.write("l.csv", "path,label\n1.png,cat\n2.png,dog\n");
  const DataDigest before = list.digest();
  CHECK(list.with("l.csv", "path,label\n1.png,dog\n2.png,cat\n") != before);
  CHECK(list.with("l.csv", "path,label\n2.png,dog\n1.png,cat\n") != before);
  CHECK(list.with("l.csv", "label,path\ncat,1.png\ndog,2.png\n") == before);
  CHECK(list.with("2.png", picture("longer")) != before);
  CHECK(list.with("2.png", picture("", 7)) != before);
  list.keys.trainFile = list.write("copy.csv", "path,label\n1.png,cat\n2.png,dog\n");
  CHECK(list.digest() == before);

  Data tar("tar");
  const auto pack = [&](const std::string& label, const std::string& png) {
    tar.write("1.png", picture());
    tar.write("1.cls", "cat");
    tar.write("2.png", png);
    tar.write("2.cls", label);
    tar.keys.trainFile = tar.path("t.tar");
    const std::string command =
        "tar -cf " + tar.path("t.tar") + " -C " + tar.path("") + " 1.png 1.cls 2.png 2.cls";
    REQUIRE(std::system(command.c_str()) == 0);
    return tar.digest();
  };
  const DataDigest packed = pack("dog", picture());
  CHECK(pack("fox", picture()) != packed);
  CHECK(pack("dog", picture("longer")) != packed);
  CHECK(pack("dog", picture("", 7)) != packed);
  CHECK(pack("dog", picture()) == packed);
  tar.keys.isShuffled = true;
  CHECK(tar.digest().samples == 2);
}

TEST_CASE("csv: other values, labels and orders of rows are a change") {
  Data data("csv");
  data.keys.trainFile = data.write("t.csv", "x,c,label\n1,u,a\n2,v,b\n5,u,a\n");
  const DataDigest before = data.digest();
  CHECK(data.with("t.csv", "x,c,label\n1,u,a\n2,v,b\n6,u,a\n") != before);
  CHECK(data.with("t.csv", "x,c,label\n1,u,a\n2,v,b\n5,v,a\n") != before);
  CHECK(data.with("t.csv", "x,c,label\n1,u,a\n2,v,b\n5,u,b\n") != before);
  CHECK(data.with("t.csv", "x,c,label\n2,v,b\n1,u,a\n5,u,a\n") != before);
  CHECK(data.with("t.csv", "x;c;label\n1;u;a\n\n2;v;b\n5;u;a\n") == before);
  data.keys.targetType = "number";
  data.keys.trainFile = data.write("t.csv", "x,label\n1,0.5\n2,0.25\n");
  CHECK(data.with("t.csv", "x,label\n1,0.5\n2,0.75\n") != data.digest());
}

TEST_CASE("text: other texts and labels are a change") {
  Data data("text");
  data.keys.tokenizer = data.write("tokenizer.json", R"({
  "added_tokens": [{"id": 0, "content": "[PAD]", "special": true, "normalized": false}],
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5}}})");
  data.keys.length = 4;
  data.keys.trainFile = data.write("t.csv", "text,label\ngood bad,a\nbad,b\n");
  const DataDigest before = data.digest();
  CHECK(data.with("t.csv", "text,label\ngood bad,a\nbad,a\ngood,b\n").samples == 3);
  CHECK(data.with("t.csv", "text,label\ngood bad,b\nbad,a\n") != before);
  CHECK(data.with("t.csv", "text,label\ngood good,a\nbad,b\n") != before);
  CHECK(data.with("t.csv", "text,label\ngood,a\nbad bad,b\n") != before);
  CHECK(data.with("t.csv", "label,text\na,good bad\nb,bad\n") == before);
  data.keys.trainFile = data.write("t.txt", "good bad good bad good good good good\n");
  CHECK(data.with("t.txt", "good bad good bad good good good bad\n") != data.digest());
}

std::string npy(const std::string& type, const std::string& shape, const std::string& values) {
  using namespace std::string_literals;
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + "}";
  header.resize(117, ' ');
  return "\x93NUMPY\x01\0\x76\0"s + header + "\n" + values;
}

TEST_CASE("tensors: other labels and values are a change") {
  using namespace std::string_literals;
  Data data("tensors");
  data.write("a/x.npy", npy("|i1", "(2, 3)", "abcdef"));
  data.write("a/labels.npy", npy("|i1", "(2,)", "\x01\0"s));
  data.keys.trainFile = data.path("a");
  const DataDigest before = data.digest();
  CHECK(before.samples == 2);
  CHECK(data.with("a/labels.npy", npy("|i1", "(2,)", "\0\x01"s)) != before);
  CHECK(data.with("a/x.npy", npy("|i1", "(2, 3)", "abcdeg")) != before);
  CHECK(data.with("a/x.npy", npy("|i1", "(2, 3)", "abcdef")) == before);
  data.keys.target = "x";
  CHECK(data.digest().samples == 2);
}

TEST_CASE("idx: other pixels and other values are a change") {
  using namespace std::string_literals;
  Data data("idx");
  data.keys.classes = 2;
  data.keys.trainLabels = data.write("labels", "\0\0\x08\x01\0\0\0\x02\0\x01"s);
  const std::string pixels = "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02"s;
  const std::string values = "\0\0\x08\x02\0\0\0\x02\0\0\0\x02"s;
  for (const std::string& header : {pixels, values}) {
    data.keys.trainImages = data.write("images", header + "abcd");
    const DataDigest before = data.digest();
    CHECK(data.with("images", header + "abce") != before);
    CHECK(data.with("images", header + "abcd") == before);
  }
}

TEST_CASE("views of a data set have digests of their samples") {
  Data data("csv");
  data.keys.trainFile = data.write("t.csv", "x,label\n1,a\n2,b\n5,a\n7,b\n");
  const std::shared_ptr<const Dataset> whole = data.open();
  const DataDigest first = digestOf(*sliceDataset(whole, 0, 2));
  CHECK(first.samples == 2);
  CHECK(digestOf(*pickSamples(whole, {0, 1})) == first);
  CHECK(digestOf(*pickSamples(whole, {1, 0})) != first);
  CHECK(digestOf(*sliceDataset(whole, 1, 2)) != first);
  CHECK(digestOf(*skipDamaged(whole, 1)) == digestOf(*whole));
  CHECK(dataDigestFrom(toJson(first)) == first);
  CHECK(dataDigestFrom(nullptr) == DataDigest());
}

}  // namespace
}  // namespace cleave::test
