// Training on image files, and the command `data show`.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/data/pictures/image_file.h"
#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

// Two classes that differ by brightness. Each class has 12 training and 4 test images.
class ImageFolder {
 public:
  ImageFolder() {
    for (const std::string name : {"bright", "dark"}) {
      for (int n = 0; n < 16; ++n) {
        Pixels image{20, 24, 3, {}};
        for (int p = 0; p < 20 * 24 * 3; ++p) {
          const int value = (name == "dark" ? 20 : 180) + (p * (n + 3)) % 60;
          image.bytes.push_back(static_cast<std::uint8_t>(value));
        }
        const std::vector<std::byte> png = encodePng(image);
        write((n < 12 ? "train/" : "test/") + name + "/" + std::to_string(n) + ".png",
              {reinterpret_cast<const char*>(png.data()), png.size()});
      }
    }
    write("config.yaml",
          "run: {name: pets}\nmodel: {name: small_cnn, width: 4}\n"
          "data: {format: folder, train: {folder: " +
              path("train") + "}, test: {folder: " + path("test") +
              "}, resize: 16, augment: {flip: true}}\n"
              "train: {batch: 8, micro_batches: 2, epochs: 2}\ncodec: none\n");
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  void write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

 private:
  TemporaryFolder folder_;
};

Ended client(const Arguments& more) {
  Arguments arguments = {clientProgram()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return finish(Process::start(arguments));
}

TEST_CASE("a run is not resumed with other pictures, and says what is wrong") {
  const ImageFolder data;
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const Arguments one = {"--set", "train.epochs=1"}, two = {"--set", "train.epochs=2"};
  const Ended first = client(
      with({"train", "--config", data.path("config.yaml"), "--run-dir", run, "--json"}, one));
  INFO(first.errors);
  REQUIRE(first.code == 0);
  const auto refused = [&] {
    const Ended ended = resume(run, two);
    CHECK(ended.code == 2);
    return ended.errors;
  };
  const auto rename = [&](const std::string& from, const std::string& to) {
    std::filesystem::rename(data.path(from), data.path(to));
  };
  rename("train/dark/3.png", "train/bright/33.png");
  CHECK_THAT(refused(), Contains("[other-data]: the training set has other samples, labels or "
                                 "file sizes than at the start of the run in " +
                                 run));
  rename("train/bright/33.png", "train/dark/3.png");
  rename("test/dark/13.png", "13.png");
  CHECK_THAT(refused(), Contains("[other-data]: the evaluation set has 7 samples, but had 8"));
  rename("13.png", "test/dark/13.png");
  rename("train", "gone");
  CHECK_THAT(refused(), Contains("[data-missing]") && Contains(data.path("train")) &&
                            Contains("hint: a resumed run cannot read other data") &&
                            Contains("a link to it in its place"));
  std::filesystem::create_directory_symlink(data.path("gone"), data.path("train"));
  const Ended resumed = resume(run, two);
  INFO(resumed.errors);
  CHECK(resumed.code == 0);
}

TEST_CASE("data show describes both splits and writes a contact sheet") {
  const ImageFolder data;
  const Ended shown = client({"data", "show", "--config", data.path("config.yaml"), "--json",
                              "--sheet", data.path("sheet.png")});
  INFO(shown.errors);
  REQUIRE(shown.code == 0);
  const nlohmann::json report = nlohmann::json::parse(shown.output);
  const nlohmann::json& train = report.at("splits").at("train");
  CHECK(train.at("samples") == 24);
  CHECK(report.at("splits").at("test").at("samples") == 8);
  CHECK(train.at("classes").at(0) == nlohmann::json{{"name", "bright"}, {"samples", 12}});
  CHECK(train.at("arrays").at(0).at("shape") == nlohmann::json{3, 16, 16});
  CHECK(report.at("sheet").at("samples").size() == 24);
  CHECK(report.at("sheet").at("samples").at(23).at("label") == "dark");
  const std::string sheet = readFile(data.path("sheet.png"));
  const Pixels pixels = decodeImage(std::as_bytes(std::span(sheet)), 3, "sheet.png");
  CHECK(pixels.width > 8 * 96);

  const Ended text = client({"data", "show", "--config", data.path("config.yaml")});
  CHECK(text.code == 0);
  CHECK_THAT(text.output,
             Contains("train: 24 samples") && Contains("dark") && Contains("f32[3, 16, 16]"));
}

// Every command's output passes the same filter (EscapedOutput), so one run shows all of it:
// columns and cells of a table, names of classes, the evaluation's table and its confusions.
TEST_CASE("texts of data files reach a terminal only as printable characters") {
  const std::string hostile =
      "\x1b[2J\xc2\x9b"
      "31m\xe2\x80\xae";
  const TemporaryFolder folder;
  std::string table = "\"a" + hostile + "\nfake\",b,y\n";
  for (int n = 0; n < 40; ++n) {
    table += std::to_string(n * 7 % 10) + ",k" + std::to_string(n % 3) + hostile + ",n" +
             std::to_string(n % 2) + "\n";
  }
  std::ofstream(folder.path("t.csv"), std::ios::binary) << table;
  std::ofstream(folder.path("c.yaml"))
      << "model: {name: mlp, width: 4}\ndata: {format: csv, train: {file: " << folder.path("t.csv")
      << "}, test: {file: " << folder.path("t.csv")
      << "}, label: y, class_names: [\"p\\e[2J\\u009b\\nfake\", q]}\n"
         "train: {epochs: 1, batch: 10, micro_batches: 2}\ncodec: none\n";
  const std::string config = folder.path("c.yaml"), run = folder.path("run");
  const Arguments commands[] = {
      {"data", "show", "--config", config},
      {"data", "show", "--config", config, "--json"},
      {"data", "check", "--config", config},
      {"train", "--config", config, "--run-dir", run},
      {"eval", run},
      {"eval", run, "--json"},
      // An error names a column.
      {"data", "show", "--config", config, "--set", "data.label=z"},
  };
  std::vector<Ended> ended;
  for (const Arguments& command : commands) {
    const Ended& each = ended.emplace_back(client(command));
    for (const std::string& text : {each.output, each.errors}) {
      INFO(text);
      for (const std::string bad : {"\x1b", "\xc2\x9b", "\xe2\x80\xae", "\nfake"}) {
        CHECK_THAT(text, !Contains(bad));
      }
    }
  }
  CHECK_THAT(ended[0].output, Contains("fake"));
  CHECK_THAT(ended[4].output, Contains("fake"));
  CHECK_THAT(ended[6].errors, Contains("[2J"));
  const auto shown = nlohmann::json::parse(ended[1].output);
  CHECK(shown.at("splits").at("train").at("columns").at(0).at("name") == "a" + hostile + "\nfake");
  const auto evaluated = nlohmann::json::parse(ended[5].output);
  CHECK(evaluated.at("classes").at(0).at("name") == "p\x1b[2J\xc2\x9b\nfake");
}

TEST_CASE("data without images is refused for a contact sheet") {
  const TemporaryFolder folder;
  const Ended ended =
      client({"data", "show", "--config", configFile("synthetic.yaml"), "--set", "data.shape=[4]",
              "--set", "model={name: mlp}", "--sheet", folder.path("sheet.png")});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.errors, Contains("no-images") && Contains("omit --sheet"));
}

TEST_CASE("mistakes with `data show` are reported with a hint") {
  const ImageFolder data;
  CHECK_THAT(client({"data", "show"}).errors, Contains("--config is required"));
  CHECK_THAT(client({"data"}).errors, Contains("give one of: show"));
  const Ended unwritable = client({"data", "show", "--config", data.path("config.yaml"), "--sheet",
                                   data.path("none/sheet.png")});
  CHECK(unwritable.code == 2);
  CHECK_THAT(unwritable.errors, Contains("[not-writable]") && Contains("mkdir -p"));
  const Ended missing = client({"data", "show", "--config", data.path("config.yaml"), "--set",
                                "data.train.folder=" + data.path("none")});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.errors, Contains("data-missing") && Contains("there is no such folder"));
}

TEST_CASE("data check lists all damaged samples, and doctor says that it did not read them") {
  const ImageFolder data;
  const std::string config = data.path("config.yaml");
  const Ended whole = client({"data", "check", "--config", config});
  INFO(whole.errors);
  CHECK(whole.code == 0);
  CHECK_THAT(whole.output, Contains("train: 24 samples, 0 damaged; test: 8 samples, 0 damaged"));
  data.write("train/dark/3.png", "no image");
  data.write("test/bright/12.png", "");
  data.write("train/dark/scan.tiff", "II*");
  const std::string list = data.path("damaged.csv");
  const Ended damaged = client({"data", "check", "--config", config, "--output", list, "--threads",
                                "3", "--set", "data.skip=5"});
  CHECK(damaged.code == 1);
  CHECK_THAT(damaged.output, Contains("train/dark/3.png is neither JPEG, PNG nor WebP") &&
                                 Contains("test/bright/12.png is empty") &&
                                 Contains("train: 24 samples, 1 damaged") &&
                                 Contains("data.skip: 1"));
  CHECK_THAT(damaged.errors, Contains("skipping 1 .tiff"));
  CHECK(readFile(list) == "name,split,sample,reason\n" + data.path("train/dark/3.png") +
                              ",train,17,\"is neither JPEG, PNG nor WebP\"\n" +
                              data.path("test/bright/12.png") + ",test,0,is empty\n");
  const Ended json = client({"data", "check", "--config", config, "--json"});
  CHECK(json.code == 1);
  const nlohmann::json report = nlohmann::json::parse(json.output);
  CHECK(report.at("splits").at("test") == nlohmann::json{{"samples", 8}, {"damaged", 1}});
  CHECK(report.at("damaged").at(0).at("sample") == 17);
  for (const nlohmann::json& each : report.at("damaged"))
    CHECK_THAT(each.at("hint").get<std::string>(), Contains("set data.skip: 1"));
  CHECK(client({"data", "check", "--config", config, "--output", list}).code == 2);
  const Ended doctor = client({"doctor", "--config", config});
  CHECK_THAT(doctor.output, Contains("data check --config " + config));
}

TEST_CASE("data check lists damaged rows and checks the other rows") {
  const ImageFolder data;
  data.write("t.csv",
             "path,label\ntrain/dark/1.png,a\ntrain/dark/2.png,N/A\n,b\n"
             "train/dark/3.png,b\ntrain/dark/4.png,b\n");
  data.write("train/dark/3.png", "");
  const std::string list = data.path("damaged.csv");
  const Ended checked =
      client({"data", "check", "--config", data.path("config.yaml"), "--output", list, "--set",
              "data={format: list, train: {file: " + data.path("t.csv") + "}, holdout: 1}"});
  INFO(checked.errors);
  CHECK(checked.code == 1);
  CHECK_THAT(checked.output, Contains("train: " + data.path("t.csv:3") + " the label 'N/A'") &&
                                 Contains("hint: remove the row, or complete it\n"));
  CHECK_THAT(readFile(list), Contains(data.path("t.csv:4") + ",train,,the row has no path\n") &&
                                 Contains("/3.png,") && Contains(",is empty\n"));
}

TEST_CASE("images of different sizes without data.resize are refused before a run starts") {
  const ImageFolder data;
  const auto refused = [&](const Arguments& command, const Arguments& more) {
    const Ended ended = client(with(
        with(command, {"--config", data.path("config.yaml"), "--set", "data.resize=0"}), more));
    CHECK(ended.code == (command.front() == "doctor" ? 1 : 2));
    CHECK_THAT(ended.errors + ended.output,
               Contains("pixels, but") && Contains("set data.resize to"));
  };
  const std::vector<std::byte> small = encodePng({8, 8, 1, std::vector<std::uint8_t>(64, 7)});
  for (int n = 12; n < 16; ++n) {
    for (const std::string name : {"bright", "dark"}) {
      data.write("test/" + name + "/" + std::to_string(n) + ".png",
                 {reinterpret_cast<const char*>(small.data()), small.size()});
    }
  }
  refused({"train"}, {"--run-dir", data.path("run")});
  refused({"data", "show"}, {});
  data.write("train/dark/3.png", {reinterpret_cast<const char*>(small.data()), small.size()});
  refused({"train"}, {"--run-dir", data.path("run"), "--set", "data.holdout=4"});
  refused({"data", "check"}, {});
  refused({"doctor"}, {});
  CHECK_FALSE(std::filesystem::exists(data.path("run")));
}

TEST_CASE("new writes a configuration that a dry run accepts") {
  const ImageFolder data;
  const std::string config = data.path("first.yaml");
  const Arguments create = {"new", "--data", data.path(""), "--output", config};
  const Ended created = client(create);
  INFO(created.errors);
  REQUIRE(created.code == 0);
  CHECK_THAT(created.output, Contains("24 samples, 2 classes: bright, dark") &&
                                 Contains("train --config " + config + " --dry-run"));
  CHECK_THAT(readFile(config), Contains("small_cnn") && Contains("format: folder"));
  CHECK(client({"train", "--config", config, "--dry-run"}).code == 0);
  const Ended again = client(create);
  CHECK(again.code == 2);
  CHECK_THAT(again.errors, Contains("file-exists"));

  // A model of the user's that takes images of 8 x 8 and returns 10 classes.
  const std::string model = CLEAVE_SOURCE_DIR "/tests/data/tiny.pt2";
  const Ended wrong = client(with(create, {"--overwrite", "--model", model}));
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.errors, Contains("the data has 2 classes"));
  std::string rows;
  for (int n = 0; n < 10; ++n) {
    rows += "train/dark/" + std::to_string(n) + ".png,c" + std::to_string(n) + "\n";
  }
  data.write("list.csv", "path,label\n" + rows + rows);
  const Ended own = client({"new", "--data", data.path("list.csv"), "--model", model, "--output",
                            data.path("own.yaml")});
  INFO(own.errors);
  REQUIRE(own.code == 0);
  CHECK_THAT(readFile(data.path("own.yaml")),
             Contains("cuts: [norm, dropout]") && Contains("% of a forward pass") &&
                 Contains("channels: 1") && Contains("holdout: 4"));
  CHECK(client({"train", "--config", data.path("own.yaml"), "--dry-run"}).code == 0);

  data.write("table.csv",
             "id,width,height,kind,note,zip\n1,1,2,a,p,01234\n2,2,,b,q,01234\n3,4,3,a,p,53111\n"
             "4,5,1,b,q,89073\n5,2,2,a,q,53111\n");
  Arguments table = {
      "new",     "--data", data.path("table.csv"), "--output", data.path("table.yaml"),
      "--label", "kind"};
  CHECK_THAT(client(table).errors, Contains("data.missing") && Contains("--set KEY=VALUE"));
  table = with(table, {"--set", "data.missing=mean"});
  CHECK_THAT(client(with(table, {"--set", "train.taget=1"})).errors,
             Contains("--set train.taget=1: train.taget is not a known key"));
  const Ended mlp = client(table);
  INFO(mlp.errors);
  REQUIRE(mlp.code == 0);
  CHECK_THAT(mlp.output, Contains("width   input: a number\n") &&
                             Contains("note    input: 2 categories: p, q\n") &&
                             Contains("kind    label: 2 classes\n") &&
                             Contains("id      not used: an ID"));
  CHECK_THAT(mlp.errors, Contains("the column 'zip' has leading zeros, such as in '01234'") &&
                             !Contains("'width'"));
  CHECK_THAT(readFile(data.path("table.yaml")),
             Contains("missing: mean\n") && Contains("ignore: [id]"));
  CHECK_THAT(
      client({"doctor", "--config", data.path("table.yaml"), "--set", "data.ignore=[]"}).errors,
      Contains("the column 'id' has a different integer in each row"));
  CHECK(client({"train", "--config", data.path("table.yaml"), "--dry-run"}).code == 0);
}

TEST_CASE("a damaged image ends a run; if it may be skipped, repeated runs are bit-identical") {
  const ImageFolder data;
  data.write("train/dark/3.png", "no image");
  const auto train = [&](const std::string& run, const std::string& skip) {
    return client({"train", "--config", data.path("config.yaml"), "--run-dir", data.path(run),
                   "--set", "data.skip=" + skip, "--set", "model.width=4"});
  };
  const Ended refused = train("refused", "0");
  CHECK(refused.code == 2);  // as in `data show`
  CHECK_THAT(refused.errors, Contains("sample-damaged") && Contains("train/dark/3.png") &&
                                 Contains("data.skip") &&
                                 Contains("cleave-client data check --config"));
  // The last two lines are the error and its hint, after those on the model that was saved.
  const std::size_t error = refused.errors.find("cleave-client: error [sample-damaged]");
  REQUIRE(error != std::string::npos);
  CHECK(refused.errors.rfind("model.partial.safetensors") < error);
  CHECK(std::count(refused.errors.begin() + static_cast<std::ptrdiff_t>(error),
                   refused.errors.end(), '\n') == 2);
  // The run continues as the hint says, with the same result as a run that began so.
  const std::string resumeWith = "train --resume " + data.path("refused") + " --set data.skip=1";
  CHECK_THAT(refused.errors,
             Contains("to continue from step 0: cleave-client " + resumeWith + "\n") &&
                 Contains("replace or remove the damaged samples and start a separate run, or use "
                          "other samples in their place") &&
                 Contains("; to continue, run: cleave-client " + resumeWith + "\n"));
  const Ended again = client({"train", "--resume", data.path("refused"), "--json-lines"});
  const auto event =
      nlohmann::json::parse(again.output.substr(again.output.find(R"({"event":"failed")")));
  CHECK(event.at("key") == "data.skip");
  CHECK(event.at("resume") == "cleave-client " + resumeWith);
  CHECK_THAT(event.at("hint").get<std::string>(), !Contains("--resume"));
  // A sweep does not suggest to continue the run of its point.
  const Ended swept =
      client({"sweep", "--config", data.path("config.yaml"), "--folder", data.path("sweep"),
              "--grid", "run.seed=1", "--set", "model.width=4"});
  CHECK_THAT(swept.output, Contains("or add --set data.skip=1, which uses other samples in their "
                                    "place; then rerun the same command") &&
                               !Contains("--resume"));
  const Ended resumed = client({"train", "--resume", data.path("refused"), "--set", "data.skip=1"});
  INFO(resumed.errors);
  REQUIRE(resumed.code == 0);
  for (const std::string run : {"first", "again"}) {
    const Ended ended = train(run, "1");
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.errors, Contains("another sample replaces it"));
  }
  // Without a prediction, there is no header either.
  const Ended predicted = client({"predict", data.path("refused"), "--input",
                                  data.path("train/dark/3.png"), "--set", "data.skip=0"});
  CHECK(predicted.code == 2);
  CHECK(predicted.output.empty());
  CHECK_THAT(predicted.errors, Contains("add --set data.skip=N"));
  data.write("table.txt", "x,y\n");
  const Ended wrong = client({"predict", data.path("refused"), "--input", data.path("table.txt")});
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.errors, Contains("hint: the model takes images: give JPEG, PNG or WebP files"));
  const std::string model = readFile(data.path("first/model.safetensors"));
  CHECK((model == readFile(data.path("again/model.safetensors"))));
  CHECK((model == readFile(data.path("refused/model.safetensors"))));
}

// Bytes of integers in big-endian order, as in IDX files.
std::string bigEndian(std::initializer_list<std::uint32_t> values) {
  std::string bytes;
  for (const std::uint32_t value : values) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift);
  }
  return bytes;
}

// A .npy file. `dtype`: "<f4"; `shape`: "(2, 3)".
std::string npyOf(const std::string& dtype, const std::string& shape, std::size_t bytes) {
  std::string header =
      "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(118, ' ');
  using namespace std::string_literals;
  return "\x93NUMPY\x01\x00\x76\x00"s + header + std::string(bytes, '\0');
}

TEST_CASE(
    "labels, ids and NaN in arrays are refused before a run starts, and data check lists them") {
  const ImageFolder data;
  using namespace std::string_literals;
  // Ten samples. `values`: of the integers at the end of the file.
  const auto put = [&](const std::string& name, const std::string& dtype, const std::string& shape,
                       std::size_t zeros, const std::string& values) {
    data.write(name, npyOf(dtype, shape, zeros) + values);
  };
  const auto refused = [&](const Arguments& more) {
    const Ended ended = client(
        with({"train", "--config", data.path("arrays.yaml"), "--run-dir", data.path("run")}, more));
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(data.path("run")));
    return ended.errors;
  };
  const auto configure = [&](const std::string& model, const std::string& cuts) {
    data.write("arrays.yaml", "model: {name: graph, file: " CLEAVE_SOURCE_DIR "/tests/data/" +
                                  model + ", cuts: " + cuts +
                                  "}\ndata: {format: tensors, holdout: 2, train: {file: " +
                                  data.path("arrays") + "}}\ntrain: {batch: 4}\n");
  };
  configure("tiny.pt2", "[norm, dropout]");
  put("arrays/x.npy", "<f4", "(10, 1, 8, 8)", 10 * 64 * sizeof(float), "");
  put("arrays/labels.npy", "|i1", "(10,)", 8, "\x0C\x01");
  CHECK_THAT(refused({}), Contains("[bad-label]") &&
                              Contains("the label 12, but the model has 10 classes, 0 to 9"));
  put("arrays/labels.npy", "|i1", "(10,)", 8, "\xFF\xFF");
  CHECK_THAT(refused({}), Contains("[bad-label]") && Contains("sample 8 has the label -1"));
  const Ended checked = client({"data", "check", "--config", data.path("arrays.yaml")});
  CHECK(checked.code == 1);
  CHECK_THAT(checked.output, Contains("arrays: sample 8 has the label -1") &&
                                 Contains("arrays: sample 9 has the label -1"));
  put("arrays/labels.npy", "|i1", "(10,)", 10, "");
  put("arrays/x.npy", "<f4", "(10, 1, 8, 8)", 10 * 64 * sizeof(float) - 4, "\0\0\xC0\x7F"s);
  CHECK_THAT(refused({}), Contains("sample 9 has a value that is NaN"));

  configure("text.pt2", "[first, second]");
  std::filesystem::remove(data.path("arrays/x.npy"));
  put("arrays/input_ids.npy", "<i2", "(10, 6)", 118, "\xE7\x03");
  CHECK_THAT(refused({}), Contains("[bad-index]") && Contains("the id 999 in input_ids"));
  put("arrays/input_ids.npy", "<i2", "(10, 6)", 118, "\xFF\xFF");
  CHECK_THAT(refused({}), Contains("[bad-index]") && Contains("the id -1 in input_ids"));
}

TEST_CASE("new writes a configuration for each format that a dry run accepts") {
  const ImageFolder data;
  const auto check = [&](const std::string& path, const std::string& contained,
                         const std::string& model = "") {
    const std::string config = data.path(path + ".yaml");
    Arguments create = {"new", "--data", data.path(path), "--output", config};
    if (!model.empty())
      create = with(create, {"--model", CLEAVE_SOURCE_DIR "/tests/data/" + model});
    const Ended created = client(create);
    INFO(created.errors);
    REQUIRE(created.code == 0);
    CHECK_THAT(readFile(config), Contains(contained));
    const Ended dry = client({"train", "--config", config, "--dry-run"});
    INFO(dry.errors);
    CHECK(dry.code == 0);
  };

  std::string rows = "text,label\n";
  for (int n = 0; n < 10; ++n) rows += n % 2 == 0 ? "good film,pos\n" : "bad,neg\n";
  data.write("reviews/train.csv", rows);
  data.write("reviews/tokenizer.json", R"({
  "added_tokens": [{"id": 0, "content": "[PAD]", "special": true, "normalized": false}],
  "normalizer": {"type": "BertNormalizer", "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": null,
              "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "bad": 5,
                      "film": 6, ",": 7}}})");
  check("reviews", "cuts: [first, second]", "text.pt2");

  for (const std::string name : {"bright", "dark"}) {
    for (int n = 0; n < 5; ++n) {
      const std::string key = "shards/" + name + std::to_string(n);
      data.write(key + ".png",
                 readFile(data.path("train/" + name + "/" + std::to_string(n) + ".png")));
      data.write(key + ".cls", name);
    }
  }
  REQUIRE(std::system(
              ("cd " + data.path("shards") + " && tar cf ../shards.tar --sort=name *").c_str()) ==
          0);
  check("shards.tar", "format: tar");

  data.write("arrays/train/x.npy", npyOf("<f4", "(10, 1, 8, 8)", 10 * 64 * sizeof(float)));
  data.write("arrays/train/labels.npy", npyOf("<i8", "(10,)", 10 * sizeof(std::int64_t)));
  check("arrays", "cuts: [norm, dropout]", "tiny.pt2");

  data.write("digits/train-images-idx3-ubyte",
             bigEndian({0x803, 10, 28, 28}) + std::string(10 * 28 * 28, '\x40'));
  data.write("digits/train-labels-idx1-ubyte",
             bigEndian({0x801, 10}) + std::string("\0\1\2\0\1\2\0\1\2\0", 10));
  check("digits", "classes: 3");

  for (const std::string name : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4",
                                 "data_batch_5", "test_batch"})
    data.write("cifar/" + name + ".bin", std::string(std::size_t{10} * 3073, '\1'));
  check("cifar", "format: cifar10");
}

}  // namespace
}  // namespace cleave::test
