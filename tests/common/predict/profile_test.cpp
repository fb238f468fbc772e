#include "common/predict/profile.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/core/error.h"

using namespace cleave;
using Catch::Matchers::Contains;

namespace {

Profile sampleProfile() {
  Profile profile;
  profile.device = "the CPU";
  profile.threads = 2;
  profile.memoryBytes = 1e9;
  profile.batch = 64;
  profile.blocks = {
      {"conv", 4096, 1000, 8192, 1e-4}, {"relu", 4096, 0, 4096, 0}, {"fc", 40, 4e6, 40, 2e-4}};
  profile.sizes = {{8, {{1e-3, 2e-3}, {1e-4, 1e-4}, {2e-3, 3e-3}}, 5e-4},
                   {32, {{3e-3, 6e-3}, {2e-4, 3e-4}, {4e-3, 6e-3}}, 1e-3}};
  profile.codecs = {{"none", {}}, {"block:bits=4", {1e-9, 2e-9}}};
  profile.runSpec = {{"model", "mlp"}};
  return profile;
}

const std::vector<std::string> kFirstTwo = {"conv", "relu"};

class ProfileFile {
 public:
  ProfileFile()
      : path_(std::filesystem::temp_directory_path() /
              ("profile_test_" + std::to_string(::getpid()))) {}
  ~ProfileFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  nlohmann::ordered_json read() const {
    std::ifstream file(path_);
    return nlohmann::ordered_json::parse(file);
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

 private:
  std::string path_;
};

}  // namespace

TEST_CASE("the seconds of a measured size are the sums over the blocks") {
  const PassSeconds seconds = sampleProfile().passSeconds(kFirstTwo, 32);
  CHECK(seconds.forward == Approx(3.2e-3));
  CHECK(seconds.backward == Approx(6.3e-3));
  CHECK(sampleProfile().lossSeconds(8) == 5e-4);
  CHECK(sampleProfile().updateSeconds(std::vector<std::string>{"relu", "fc"}) == Approx(2e-4));
  CHECK(sampleProfile().updateSeconds({}) == 0);
}

TEST_CASE("the seconds of other sizes are interpolated, or proportional to the samples") {
  const Profile profile = sampleProfile();
  CHECK(profile.passSeconds(kFirstTwo, 20).forward == Approx((1.1e-3 + 3.2e-3) / 2));
  CHECK(profile.passSeconds(kFirstTwo, 64).forward == Approx(6.4e-3));
  CHECK(profile.passSeconds(kFirstTwo, 4).forward == Approx(0.55e-3));
}

TEST_CASE("blocks and codecs that the profile does not have are refused") {
  const Profile profile = sampleProfile();
  CHECK_THROWS_WITH(profile.passSeconds(std::vector<std::string>{"conv", "fc"}, 8),
                    Contains("'conv' to 'fc'"));
  CHECK_THROWS_WITH(profile.codec("sort"), Contains("does not have the codec 'sort'"));
  CHECK(profile.codec("block:bits=4").decodeSeconds == 2e-9);
  CHECK_THROWS_WITH(profile.checkBlock("conv", 4000), Contains("has an output of 4.10 kB"));
  CHECK_NOTHROW(profile.checkBlock("conv", 4096));
  CHECK_NOTHROW(profile.checkBlock("other", 1));
}

TEST_CASE("a profile that was written is read back unchanged") {
  const ProfileFile file;
  const Profile profile = sampleProfile();
  writeProfile(file.path(), profile);
  const Profile back = readProfile(file.path());
  const nlohmann::ordered_json first = file.read();
  writeProfile(file.path(), back);
  CHECK(file.read() == first);
  CHECK(back.blocks[2].parameterBytes == 4e6);
  CHECK(back.passSeconds(kFirstTwo, 8).backward == profile.passSeconds(kFirstTwo, 8).backward);
}

TEST_CASE("a file that is not a profile is refused with its fault") {
  const ProfileFile file;
  CHECK_THROWS_WITH(readProfile(file.path()), Contains("cannot be read"));
  writeProfile(file.path(), sampleProfile());
  const nlohmann::ordered_json good = file.read();
  const auto refused = [&](const std::string& pointer, const nlohmann::ordered_json& value) {
    nlohmann::ordered_json bad = good;
    bad[nlohmann::ordered_json::json_pointer(pointer)] = value;
    file.write(bad.dump());
    INFO(pointer);
    CHECK_THROWS_AS(readProfile(file.path()), UsageError);
  };
  refused("/profile", 1);
  refused("/memory_bytes", -1);
  refused("/blocks", nlohmann::ordered_json::array());
  refused("/blocks/0/parameter_bytes", "many");
  refused("/sizes", nlohmann::ordered_json::array());
  refused("/sizes/0/samples", 0);
  refused("/sizes/0/samples", 32);
  refused("/sizes/1/forward_seconds", {1, 2});
  refused("/sizes/1/backward_seconds", {1, -2, 3});
  refused("/sizes/1/weights_seconds", {0, 1, 0});
  refused("/codecs/none", 1);
  file.write("not JSON");
  CHECK_THROWS_WITH(readProfile(file.path()), Contains("is not a profile"));
}
