#include "common/codec/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string_view>

using namespace cleave;
using Catch::Matchers::Contains;

namespace {

using Bytes = std::vector<std::byte>;

// Two tensors, 24 and 8 bytes.
const std::string kGoodHeader =
    R"({"__metadata__":{"run":"a-1"},)"
    R"("head.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("steps":{"dtype":"I64","shape":[],"data_offsets":[24,32]}})";
constexpr std::size_t kGoodDataBytes = 32;

Bytes bytesOf(std::string_view text) {
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// The data bytes are 0, 1, 2, …
Bytes fileOf(const std::string& header, std::size_t dataBytes = kGoodDataBytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  for (std::size_t j = 0; j < dataBytes; ++j) file += static_cast<char>(j);
  return bytesOf(file);
}

// A valid file with one part of its header replaced.
Bytes damaged(const std::string& good, const std::string& bad) {
  std::string header = kGoodHeader;
  const std::size_t place = header.find(good);
  REQUIRE(place != std::string::npos);
  return fileOf(header.replace(place, good.size(), bad));
}

// Returns the error sentence for a file that must be refused.
std::string faultOf(const Bytes& file) {
  try {
    readSafetensors(file, "w.safetensors");
  } catch (const UsageError& error) {
    CHECK(error.code() == "bad-safetensors");
    CHECK_THAT(error.what(), Catch::Matchers::StartsWith("w.safetensors: "));
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the tensors of a file are read in the order of their data") {
  const Bytes file = fileOf(kGoodHeader);
  const std::vector<SafetensorsEntry> entries = readSafetensors(file, "w");
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].name == "head.weight");
  CHECK(entries[0].dtype == "F32");
  CHECK(entries[0].shape == std::vector<std::int64_t>{2, 3});
  CHECK(entries[0].bytes.size() == 24);
  CHECK(entries[0].bytes.data() == file.data() + 8 + kGoodHeader.size());
  CHECK(entries[1].name == "steps");
  CHECK(entries[1].shape.empty());
  CHECK(entries[1].bytes[0] == std::byte{24});
}

TEST_CASE("a written file is read back with its entries in the given order") {
  const Bytes data(100, std::byte{7});
  const std::span<const std::byte> bytes(data);
  const std::vector<SafetensorsEntry> entries = {
      {"z.weight", "F32", {2, 3}, bytes.first(24)},
      {"scalar", "F16", {}, bytes.first(2)},
      {"empty", "BF16", {0, 5}, {}},
      {"a \"quoted\" näme\n", "I64", {1, 1, 1, 1, 1, 1, 1, 2}, bytes.first(16)},
  };
  const Bytes file = writeSafetensors(entries, {{"format", "pt"}, {"model", "mlp"}});
  const std::vector<SafetensorsEntry> read = readSafetensors(file, "w");
  REQUIRE(read.size() == entries.size());
  // An empty tensor may come before or after others with the same offset. Here "empty" keeps its
  // place.
  for (std::size_t j = 0; j < entries.size(); ++j) {
    CHECK(read[j].name == entries[j].name);
    CHECK(read[j].dtype == entries[j].dtype);
    CHECK(read[j].shape == entries[j].shape);
    CHECK(std::equal(read[j].bytes.begin(), read[j].bytes.end(), entries[j].bytes.begin(),
                     entries[j].bytes.end()));
  }
}

TEST_CASE("the written bytes follow the format, with the header padded with spaces") {
  const Bytes data = bytesOf("abcdefgh");
  const Bytes file = writeSafetensors({{"w", "F32", {2}, data}}, {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}})";
  REQUIRE(header.size() < 120);
  std::string expected = {120, 0, 0, 0, 0, 0, 0, 0};
  expected += header + std::string(120 - header.size(), ' ') + "abcdefgh";
  CHECK(file == bytesOf(expected));
}

TEST_CASE("data starts at a multiple of 64 bytes for any header length") {
  for (std::size_t length = 1; length <= 130; ++length) {
    const Bytes data(4);
    const Bytes file = writeSafetensors({{std::string(length, 'n'), "F32", {}, data}});
    const std::vector<SafetensorsEntry> entries = readSafetensors(file, "w");
    REQUIRE((entries[0].bytes.data() - file.data()) % 64 == 0);
    REQUIRE(file.size() - 4 <= 8 + length + 128);
  }
}

TEST_CASE("files without tensors, or without metadata, are read") {
  CHECK(readSafetensors(writeSafetensors({}), "w").empty());
  CHECK(readSafetensors(fileOf("{}", 0), "w").empty());
  CHECK(readSafetensors(fileOf(R"({"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", 2), "w")
            .size() == 1);
}

TEST_CASE("a file cut short at any length is refused") {
  const Bytes file = fileOf(kGoodHeader);
  for (std::size_t length = 0; length < file.size(); ++length) {
    INFO(length << " bytes");
    const Bytes truncated(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length));
    REQUIRE(faultOf(truncated) != "no error");
  }
}

TEST_CASE("a file with any byte set to 0x00 or 0xff is refused or read in bounds") {
  const Bytes file = fileOf(kGoodHeader);
  for (std::size_t place = 0; place < file.size(); ++place) {
    for (const std::byte value : {std::byte{0x00}, std::byte{0xff}}) {
      Bytes garbled = file;
      garbled[place] = value;
      // In the length and the header, both values are invalid, unless the byte already has the
      // value. Data may have any value.
      const bool harmless = place >= 8 + kGoodHeader.size() || garbled == file;
      INFO("byte " << place);
      REQUIRE((faultOf(garbled) == "no error") == harmless);
    }
  }
}

TEST_CASE("a file shorter than the header's length field is refused") {
  CHECK_THAT(faultOf(Bytes(7)), Contains("too short"));
  CHECK_THAT(faultOf({}), Contains("too short"));
}

TEST_CASE("a header length beyond the file, the limit, or all memory is refused") {
  Bytes file = fileOf(kGoodHeader);
  std::uint64_t length = file.size() - 7;
  std::memcpy(file.data(), &length, 8);
  CHECK_THAT(faultOf(file), Contains("claims " + std::to_string(length) + " bytes, but"));
  for (const std::uint64_t huge :
       {std::uint64_t{100'000'001}, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::memcpy(file.data(), &huge, 8);
    CHECK_THAT(faultOf(file), Contains("the limit is 100 MB"));
  }
}

TEST_CASE("a header that is not a JSON object is refused") {
  for (const std::string header : {"", "[]", "null", "7", "\"a\"", " {}", "\xef\xbb\xbf{}"}) {
    INFO(header);
    CHECK_THAT(faultOf(fileOf(header, 0)), Contains("not a JSON object"));
  }
}

TEST_CASE("a header that is not JSON is refused") {
  for (const std::string header :
       {"{", "{}}", "{,}", "{} x", "{\"a\":}", "{'a':1}", "{\"\xff\":1}"}) {
    INFO(header);
    CHECK_THAT(faultOf(fileOf(header, 0)), Contains("cannot be read as JSON, at byte "));
  }
  CHECK_THAT(faultOf(damaged("[0,24]", "[0,1e999]")), Contains("cannot be read as JSON"));
}

TEST_CASE("hidden bytes after a NUL in the header are refused") {
  CHECK_THAT(faultOf(fileOf("{}" + std::string(1, '\0'), 0)), Contains("contains a NUL byte"));
  CHECK_THAT(faultOf(fileOf(kGoodHeader + std::string(1, '\0') + "x")), Contains("NUL"));
}

TEST_CASE("a duplicate tensor name is refused") {
  CHECK_THAT(faultOf(damaged("\"steps\"", "\"head.weight\"")),
             Contains("names \"head.weight\" twice"));
}

TEST_CASE("a duplicate key of a tensor is refused") {
  CHECK_THAT(faultOf(damaged(R"("dtype":"F32")", R"("dtype":"F32","dtype":"F32")")),
             Contains("names \"dtype\" twice"));
}

TEST_CASE("a header nested deeper than the format allows is refused, even with 100000 levels") {
  CHECK_THAT(faultOf(damaged("[2,3]", R"({"a":{"b":{}}})")), Contains("deeper than 3 levels"));
  CHECK_THAT(faultOf(damaged("[2,3]", "[[2],3]")), Contains("deeper than 3 levels"));
  std::string deep = "{\"a\":";
  for (int level = 0; level < 100'000; ++level) deep += "{\"a\":";
  CHECK_THAT(faultOf(fileOf(deep)), Contains("deeper than 3 levels"));
}

TEST_CASE("arrays of a million values or containers stop the reader immediately") {
  std::string values = "{\"a\":[1";
  std::string containers = "{\"a\":[[]";
  for (int j = 0; j < 1'000'000; ++j) values += ",1";
  for (int j = 0; j < 1'000'000; ++j) containers += ",[]";
  CHECK_THAT(faultOf(fileOf(values)), Contains("more than 8 values"));
  CHECK_THAT(faultOf(fileOf(containers)), Contains("values that are not numbers"));
}

#ifndef CLEAVE_SANITIZED  // takes half a minute with a sanitizer
TEST_CASE("a file with more than 100000 tensors is refused") {
  const auto fileWith = [](int tensors) {
    std::string header = "{";
    for (int j = 0; j < tensors; ++j) {
      header += (j > 0 ? ",\"" : "\"") + std::to_string(j) +
                R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    }
    return fileOf(header + "}", 0);
  };
  CHECK(readSafetensors(fileWith(100'000), "w").size() == 100'000);
  CHECK_THAT(faultOf(fileWith(100'002)), Contains("more than 100000 tensors"));
}

TEST_CASE("metadata with more names than a header may have is refused") {
  std::string header = R"({"__metadata__":{"x":"")";
  for (int j = 0; j < 500'000; ++j) header += ",\"" + std::to_string(j) + "\":\"\"";
  CHECK_THAT(faultOf(fileOf(header + "}}", 0)), Contains("more than 500000 names"));
}
#endif

TEST_CASE("metadata that is not an object of strings is refused") {
  for (const std::string metadata : {"7", "[]", "null", R"({"run":1})", R"({"run":{}})"}) {
    CHECK_THAT(faultOf(damaged(R"({"run":"a-1"})", metadata)),
               Contains("not an object of strings"));
  }
}

TEST_CASE("a tensor that lacks a key, has an unknown key, or is not an object is refused") {
  const std::string expected =
      "tensor \"steps\": does not consist of dtype, shape and data_offsets";
  CHECK_THAT(faultOf(damaged(R"("dtype":"I64",)", "")), Contains(expected));
  CHECK_THAT(faultOf(damaged(R"("shape":[],)", "")), Contains(expected));
  CHECK_THAT(faultOf(damaged(R"(,"data_offsets":[24,32])", "")), Contains(expected));
  CHECK_THAT(faultOf(damaged(R"("shape":[],)", R"("shape":[],"x":1,)")), Contains(expected));
  CHECK_THAT(faultOf(damaged(R"({"dtype":"I64","shape":[],"data_offsets":[24,32]})", "8")),
             Contains(expected));
}

TEST_CASE("an unknown dtype is refused") {
  CHECK_THAT(faultOf(damaged("\"F32\"", "\"F33\"")), Contains("unknown dtype \"F33\""));
  CHECK_THAT(faultOf(damaged("\"F32\"", "\"f32\"")), Contains("supported are F32, F16, BF16, I64"));
  CHECK_THAT(faultOf(damaged("\"F32\"", "\"\"")), Contains("unknown dtype"));
  CHECK_THAT(faultOf(damaged("\"F32\"", "32")), Contains("dtype is not a string"));
}

TEST_CASE("a name or dtype with control characters is shown escaped") {
  CHECK_THAT(faultOf(damaged("\"F32\"", "\"\\u001b[31m\"")), Contains("\"\\u001b[31m\""));
}

TEST_CASE("a shape that is not an array of counts is refused") {
  for (const std::string shape :
       {"6", "{}", "null", "[2,-3]", "[2,3.0]", "[2,\"3\"]", "[2,null]", "[true,3]"}) {
    INFO(shape);
    CHECK_THAT(faultOf(damaged("[2,3]", shape)),
               Contains("shape is not an array of non-negative integers"));
  }
}

TEST_CASE("a shape of more than 8 dimensions is refused") {
  CHECK_THAT(faultOf(damaged("[2,3]", "[2,3,1,1,1,1,1,1,1]")), Contains("more than 8 values"));
  CHECK(faultOf(damaged("[2,3]", "[2,3,1,1,1,1,1,1]")) == "no error");
}

TEST_CASE("a shape whose product overflows is refused") {
  for (const std::string shape :
       {"[4294967296,4294967296]", "[9223372036854775807,2]", "[18446744073709551615]",
        "[6917529027641081856,4]", "[0,9223372036854775807]", "[1099511627777]"}) {
    INFO(shape);
    CHECK_THAT(faultOf(damaged("[2,3]", shape)), Contains("more elements than 2^40"));
  }
  // The number is larger than any integer type, so JSON treats it as a float.
  CHECK_THAT(faultOf(damaged("[2,3]", "[18446744073709551616]")),
             Contains("not an array of non-negative integers"));
}

TEST_CASE("a shape that disagrees with the number of bytes is refused") {
  CHECK_THAT(faultOf(damaged("[2,3]", "[2,2]")), Contains("make 16 bytes, its data_offsets 24"));
  CHECK_THAT(faultOf(damaged("[2,3]", "[0]")), Contains("make 0 bytes"));
  CHECK_THAT(faultOf(damaged("\"F32\"", "\"BF16\"")), Contains("make 12 bytes"));
}

TEST_CASE("data_offsets that are not two counts are refused") {
  for (const std::string offsets :
       {"24", "[]", "[24]", "[0,24,32]", "[-8,24]", "[0,24.0]", "[0,\"24\"]", "{}"}) {
    INFO(offsets);
    CHECK_THAT(faultOf(damaged("[0,24]", offsets)), Contains("not two non-negative integers"));
  }
}

TEST_CASE("reversed data_offsets are refused") {
  CHECK_THAT(faultOf(damaged("[0,24]", "[24,0]")), Contains("reversed"));
}

TEST_CASE("overlapping tensors are refused") {
  CHECK_THAT(faultOf(damaged("[24,32]", "[16,24]")), Contains("\"steps\": its bytes overlap"));
  CHECK_THAT(faultOf(damaged("[24,32]", "[0,8]")), Contains("overlap"));
}

TEST_CASE("a gap before a tensor is refused") {
  CHECK_THAT(faultOf(damaged("[0,24]", "[8,32]")), Contains("gap"));
  const std::string header = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  CHECK_THAT(faultOf(fileOf(header, 8)), Contains("\"w\": there is a gap"));
}

TEST_CASE("an empty tensor beyond the end of the others is refused") {
  const std::string header = R"({"w":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})";
  CHECK_THAT(faultOf(fileOf(header, 4)), Contains("gap"));
}

TEST_CASE("data that ends before or after the end of the last tensor is refused") {
  CHECK_THAT(faultOf(fileOf(kGoodHeader, kGoodDataBytes - 1)),
             Contains("end at offset 32, but the data has only 31 bytes"));
  CHECK_THAT(faultOf(fileOf(kGoodHeader, kGoodDataBytes + 1)),
             Contains("1 bytes after the last tensor"));
  CHECK_THAT(faultOf(fileOf("{}", 1)), Contains("after the last tensor"));
}

TEST_CASE("offsets near the maximum integer are refused") {
  CHECK_THAT(faultOf(damaged("[24,32]", "[18446744073709551600,18446744073709551608]")),
             Contains("gap"));
}
