// The commands of `cleave-client codec`, on the tensors of a file.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

Ended askCodec(Arguments arguments) {
  arguments.insert(arguments.begin(), "codec");
  return ask(arguments);
}

nlohmann::json codecJson(Arguments arguments) {
  arguments.insert(arguments.begin(), "codec");
  return askJson(arguments);
}

// Writes a safetensors file with unaligned data: floats of each width, integers and metadata.
// `value` is one of the fp32 values.
std::string writeTensors(const TemporaryFolder& folder, float value = 0.5f) {
  std::string header =
      R"({"__metadata__":{"made":"by hand"},)"
      R"("conv.weight":{"dtype":"F32","shape":[8,16,4,4],"data_offsets":[0,8192]},)"
      R"("half":{"dtype":"F16","shape":[100],"data_offsets":[8192,8392]},)"
      R"("brain":{"dtype":"BF16","shape":[3,5],"data_offsets":[8392,8422]},)"
      R"("none":{"dtype":"F32","shape":[0,4],"data_offsets":[8422,8422]},)"
      R"("steps":{"dtype":"I64","shape":[],"data_offsets":[8422,8430]},)"
      R"("mask":{"dtype":"BOOL","shape":[2],"data_offsets":[8430,8432]}})";
  if (header.size() % 4 == 0) header += ' ';
  const std::uint64_t length = header.size();
  std::vector<float> values(2048);
  for (std::size_t j = 0; j < values.size(); ++j) {
    values[j] = std::sin(0.7f * static_cast<float>(j)) + 0.01f * static_cast<float>(j % 13);
  }
  values[77] = value;
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  for (int j = 0; j < 115;
       ++j) {  // patterns from 0x3800 to 0x39ff are finite and positive in both formats
    file += static_cast<char>(j);
    file += static_cast<char>(0x38 + j % 2);
  }
  file += std::string("\x07\0\0\0\0\0\0\0", 8);
  file += std::string("\x01\0", 2);
  const std::string path = folder.path("in.safetensors");
  std::ofstream(path, std::ios::binary) << file;
  return path;
}

TEST_CASE("`codec list` shows the parameters and the ratio of each codec") {
  const nlohmann::json listed = codecJson({"list"}).at("codecs");
  const Ended shown = askCodec({"list"});
  CHECK(shown.code == 0);
  bool seesBlock = false;
  for (const nlohmann::json& item : listed) {
    const std::string name = item.at("name");
    INFO(name);
    CHECK(item.at("parameters").is_string());
    if (name == "auto") continue;  // `auto` only chooses among other codecs
    CHECK(item.at("ratio").get<double>() > 0);
    CHECK_THAT(shown.output, Contains("\n  " + name + " "));
    if (name == "none") CHECK(item.at("ratio") == 1.0);
    if (name != "block") continue;
    seesBlock = true;
    CHECK(item.at("ratio").get<double>() == Approx(8.5 / 32).epsilon(1e-4));
    CHECK(item.at("ratio_is") == "exact");
  }
  CHECK(seesBlock);
  CHECK_THAT(shown.output, Contains("f32[8, 32, 56, 56]") && Contains("ratio:      0.2656\n") &&
                               Contains("ratio:      at most "));
}

TEST_CASE("`codec run` writes the decoded tensors to a file and reports the error") {
  const TemporaryFolder folder;
  const std::string input = writeTensors(folder);
  const std::string exact = folder.path("exact.safetensors");
  const nlohmann::json none = codecJson({"run", "none", "--input", input, "--output", exact});
  CHECK(readFile(exact) == readFile(input));
  CHECK(none.at("total").at("exact") == true);
  CHECK(none.at("total").at("snr_db").is_null());
  CHECK(none.at("total").at("ratio") == 1.0);

  const std::string output = folder.path("out.safetensors");
  const nlohmann::json block =
      codecJson({"run", "block:bits=8", "--input", input, "--output", output});
  CHECK_THAT(block.at("codec").get<std::string>(), Contains("block:bits=8"));
  CHECK(block.at("output") == output);
  REQUIRE(block.at("tensors").size() == 4);
  const nlohmann::json& weight = block.at("tensors").at(0);
  CHECK(weight.at("name") == "conv.weight");
  CHECK(weight.at("dtype") == "F32");
  CHECK(weight.at("shape") == nlohmann::json::array({8, 16, 4, 4}));
  CHECK(weight.at("raw_bytes") == 8192);
  CHECK(weight.at("wire_bytes") == 1 + 2048 + 2048 / 64 * 4);
  CHECK(weight.at("ratio").get<double>() == Approx(2177.0 / 8192));
  CHECK(weight.at("snr_db").get<double>() > 30);
  CHECK(weight.at("largest_error").get<double>() > 0);
  CHECK(weight.at("largest_error").get<double>() < 0.02);
  CHECK(weight.at("encode_gb_s").get<double>() > 0);
  CHECK(weight.at("decode_gb_s").get<double>() > 0);
  CHECK(weight.at("exact") == false);
  CHECK(block.at("tensors").at(3).at("ratio").is_null());  // an empty tensor has no ratio
  CHECK(block.at("total").at("tensors") == 4);
  CHECK(block.at("total").at("raw_bytes") == 8422);
  CHECK(block.at("total").at("snr_db").get<double>() > 30);
  REQUIRE(block.at("copied").size() == 2);
  CHECK(block.at("copied").at(0).at("name") == "steps");
  CHECK(block.at("copied").at(1).at("name") == "mask");

  const std::string before = readFile(input);
  const std::string after = readFile(output);
  REQUIRE(after.size() == before.size());
  CHECK(after.substr(0, before.size() - 8422 - 10) == before.substr(0, before.size() - 8422 - 10));
  CHECK(after.substr(after.size() - 10) == before.substr(before.size() - 10));
  CHECK(after != before);

  const Ended shown =
      askCodec({"run", "fp16", "--input", input, "--output", folder.path("shown.safetensors")});
  CHECK(shown.code == 0);
  CHECK_THAT(shown.output, Contains("conv.weight") && Contains("copied unchanged") &&
                               Contains("\ntotal ") && Contains("SNR dB"));
}

TEST_CASE("`codec compare` prints one aligned row per codec") {
  const TemporaryFolder folder;
  const std::string input = writeTensors(folder);
  const Ended shown = askCodec(
      {"compare", "--input", input, "none", "block:bits=8", "uniform:bits=4", "topk:ratio=0.1"});
  INFO(shown.output << shown.errors);
  CHECK(shown.code == 0);
  std::istringstream lines(shown.output);
  std::size_t width = 0;
  int rows = 0;
  for (std::string line; std::getline(lines, line);) {
    if (width == 0 && line.starts_with("codec")) width = line.size();
    if (width == 0) continue;
    if (line.empty()) break;
    CHECK(line.size() == width);
    ++rows;
  }
  CHECK(rows == 5);

  const nlohmann::json codecs =
      codecJson({"compare", "none", "block:bits=8", "block:bits=2", "--input", input}).at("codecs");
  REQUIRE(codecs.size() == 3);
  CHECK(codecs.at(0).at("exact") == true);
  CHECK(codecs.at(1).at("snr_db").get<double>() > 30);
  CHECK(codecs.at(2).at("snr_db").get<double>() < codecs.at(1).at("snr_db").get<double>());
  CHECK(codecs.at(2).at("wire_bytes") < codecs.at(1).at("wire_bytes"));
}

TEST_CASE("the error names a tensor that the codec cannot encode") {
  const TemporaryFolder folder;
  const std::string input = writeTensors(folder, std::numeric_limits<float>::infinity());
  const std::string output = folder.path("out.safetensors");
  const Ended run = askCodec({"run", "block:bits=8", "--input", input, "--output", output});
  CHECK(run.code == kFailed);
  CHECK_THAT(run.errors,
             Contains("in.safetensors: tensor \"conv.weight\" contains NaN or infinity") &&
                 Contains("hint: use none, fp16 or bf16"));
  CHECK_FALSE(std::filesystem::exists(output));

  const Ended compared = askCodec({"compare", "--input", input, "block:bits=8", "bf16", "--json"});
  CHECK(compared.code == kFailed);
  CHECK_THAT(compared.errors, Contains("conv.weight"));
  const nlohmann::json codecs = nlohmann::json::parse(compared.output).at("codecs");
  CHECK(codecs.at(0).contains("error"));
  CHECK(codecs.at(1).at("snr_db").get<double>() > 30);
}

void checkMistake(const Arguments& arguments, const std::vector<std::string>& texts) {
  const Ended ended = askCodec(arguments);
  INFO(ended.errors);
  CHECK(ended.code == kWrongUse);
  CHECK((ended.output.empty() || ended.output.starts_with(R"({"error":)")));
  CHECK_THAT(ended.errors, Contains("hint: "));
  for (const std::string& text : texts) CHECK_THAT(ended.errors, Contains(text));
}

TEST_CASE("errors of the codec commands have a hint") {
  const TemporaryFolder folder;
  const std::string input = writeTensors(folder);
  const std::string output = folder.path("out.safetensors");
  checkMistake({"run", "unifrom:bits=8", "--input", input, "--output", output},
               {"'unifrom' is not a codec", "did you mean uniform?"});
  checkMistake({"compare", "none", "block:bits=99", "--input", input}, {"bits", "1", "8"});
  checkMistake({"run", "none", "--input", folder.path("absent"), "--output", output},
               {"absent: there is no such file"});
  checkMistake({"run", "none", "--input", input, "--output", folder.path("no/where")},
               {"No such file or directory", "mkdir -p"});
  checkMistake({"compare", "none", "--input", configFile("synthetic.yaml")},
               {"synthetic.yaml: its header claims"});
  checkMistake({}, {"a command is missing after 'cleave-client codec'", "list, run, compare"});
  checkMistake({"lst"}, {"there is no command 'lst'", "did you mean list?"});
  checkMistake({"lst", "--json"}, {"there is no command 'lst'"});
  checkMistake({"run", "none", "--inptu", input}, {"--inptu", "did you mean --input?"});
  checkMistake({"run", "none", "--input", input}, {"--output"});
  CHECK_FALSE(std::filesystem::exists(output));
}

TEST_CASE("an existing output is replaced only with --overwrite") {
  const TemporaryFolder folder;
  const std::string input = writeTensors(folder);
  const std::string output = folder.path("out.safetensors");
  std::ofstream(output) << "precious";
  const Arguments run = {"run", "none", "--input", input, "--output", output};
  checkMistake(run, {"out.safetensors exists", "--overwrite"});
  CHECK(readFile(output) == "precious");
  Arguments overwrite = run;
  overwrite.emplace_back("--overwrite");
  CHECK(askCodec(overwrite).code == 0);
  CHECK(readFile(output) == readFile(input));
}

TEST_CASE("the help of every codec command has an example") {
  for (const char* command : {"list", "run", "compare"}) {
    const Ended help = askCodec({command, "--help"});
    CHECK(help.code == 0);
    CHECK_THAT(help.output, Contains(std::string("Example:\n  cleave-client codec ") + command));
  }
  CHECK_THAT(askCodec({"run", "--help"}).output, Contains("never channels-last"));
}

}  // namespace
}  // namespace cleave::test
