// Frames: encoding, damage and limits. Also compares the tables of proto/PROTOCOL.md with the code.
#include "common/net/frames/frame.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/link/probe/probe_link.h"
#include "common/link/probe/trial.h"
#include "common/net/connection.h"
#include "common/net/streams/tls_stream.h"
#include "proto/wire.pb.h"
#include "tests/support/error_code.h"

using namespace cleave;

namespace {

std::span<const std::byte> bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

FrameHeader tensorHeader() {
  FrameHeader header;
  header.kind = FrameKind::tensor;
  header.flags = kFlagChecksum;
  header.metadataBytes = 0x01020304;
  header.payloadBytes = 0x05060708;
  header.stream = 0x1112131415161718;
  header.checksum = 0x2122232425262728;
  return header;
}

HeaderBytes damaged(std::size_t at, int value) {
  HeaderBytes bytes = encodeHeader(tensorHeader());
  bytes[at] = static_cast<std::byte>(value);
  return bytes;
}

std::string codeOfMagic(std::string_view text) {
  return errorCode([&] { checkMagic(bytesOf(text)); });
}

// ---- PROTOCOL.md ----

std::string readFile(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" `");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" `") - first + 1);
}

std::string section(const std::string& name) {
  const std::string text = readFile(CLEAVE_SOURCE_DIR "/proto/PROTOCOL.md");
  const std::string begin = "<!-- begin:" + name + " -->\n";
  const auto start = text.find(begin);
  const auto end = text.find("<!-- end:" + name + " -->");
  REQUIRE(start != std::string::npos);
  REQUIRE(end != std::string::npos);
  return text.substr(start + begin.size(), end - start - begin.size());
}

// The rows of a table except its header. Cells have no surrounding spaces or backticks.
std::vector<std::vector<std::string>> table(const std::string& name) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(section(name));
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(trimmed(cell));
    rows.push_back(cells);
  }
  REQUIRE(rows.size() > 2);
  rows.erase(rows.begin(), rows.begin() + 2);
  return rows;
}

// Collects the codes of errors created in a source file: `ProtocolError("code", …`,
// `UsageError("code", …`, `RunError("code", …`.
void collectCodes(const std::string& source, std::set<std::string>& codes) {
  const std::string call = "Error(", kind = "ErrorKind::";
  for (auto at = source.find(call); at != std::string::npos; at = source.find(call, at + 1)) {
    auto start = source.find_first_not_of(" \n", at + call.size());
    if (start != std::string::npos && source.compare(start, kind.size(), kind) == 0) {
      start = source.find_first_not_of(" \n", source.find(',', start) + 1);
    }
    if (start == std::string::npos || source[start] != '"') continue;
    codes.insert(source.substr(start + 1, source.find('"', start + 1) - start - 1));
  }
}

const std::map<std::string, ConnectionState> kStates = {
    {"awaitingHello", ConnectionState::awaitingHello},
    {"awaitingHelloOk", ConnectionState::awaitingHelloOk},
    {"open", ConnectionState::open}};

}  // namespace

TEST_CASE("an encoded header has the documented bytes") {
  const std::vector<int> expected = {'C',  'L',  'V',  'E',  6,    8,    1,    0,     //
                                     4,    3,    2,    1,    8,    7,    6,    5,     //
                                     0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,  //
                                     0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21};
  std::vector<int> bytes;
  for (const std::byte byte : encodeHeader(tensorHeader())) bytes.push_back(static_cast<int>(byte));
  CHECK(bytes == expected);
}

TEST_CASE("a header survives encoding and decoding") {
  const FrameHeader header = tensorHeader();
  const FrameHeader decoded = decodeHeader(encodeHeader(header));
  CHECK(decoded.kind == header.kind);
  CHECK(decoded.flags == header.flags);
  CHECK(decoded.metadataBytes == header.metadataBytes);
  CHECK(decoded.payloadBytes == header.payloadBytes);
  CHECK(decoded.stream == header.stream);
  CHECK(decoded.checksum == header.checksum);
}

TEST_CASE("a damaged header is refused with the code of its damage") {
  CHECK(errorCode([] { decodeHeader(damaged(0, 'X')); }) == "not-cleave");
  CHECK(errorCode([] { decodeHeader(damaged(3, 'X')); }) == "not-cleave");
  CHECK(errorCode([] { decodeHeader(damaged(4, 0)); }) == "version-mismatch");
  CHECK(errorCode([] { decodeHeader(damaged(4, kWireVersion + 1)); }) == "version-mismatch");
  CHECK(errorCode([] { decodeHeader(damaged(5, 0)); }) == "unknown-frame");
  CHECK(errorCode([] { decodeHeader(damaged(5, 20)); }) == "unknown-frame");
  CHECK(errorCode([] { decodeHeader(damaged(5, 255)); }) == "unknown-frame");
  CHECK(errorCode([] { decodeHeader(damaged(6, 3)); }) == "bad-frame");
  CHECK(errorCode([] { decodeHeader(damaged(7, 1)); }) == "bad-frame");
}

TEST_CASE("a checksum whose flag was lost is refused, not skipped") {
  CHECK(errorCode([] { decodeHeader(damaged(6, 0)); }) == "bad-frame");
}

TEST_CASE("a version mismatch names both versions") {
  CHECK(errorText([] { decodeHeader(damaged(4, 7)); }) ==
        "the peer's frames have wire version 7, this side uses version 6");
}

TEST_CASE("other protocols on a port are recognised and named") {
  CHECK(codeOfMagic("HTTP/1.1 400 Bad Request") == "not-cleave");
  const auto sentence = [](std::string_view text) {
    return errorText([&] { checkMagic(bytesOf(text)); });
  };
  CHECK(sentence("HTTP/1.1 400 Bad Request") ==
        "the peer does not speak Cleave: it is an HTTP server");
  CHECK(sentence("GET / HTTP/1.1\r\n") == "the peer does not speak Cleave: it is an HTTP client");
  CHECK(sentence("SSH-2.0-OpenSSH_9.2p1\r\n") ==
        "the peer does not speak Cleave: it is an SSH server or client");
  CHECK(sentence("\x16\x03\x01\x02") == "the peer uses TLS, but this side does not");
  CHECK(sentence("220 mail ESMTP\r\n") ==
        "the peer does not speak Cleave: it sent \"220 mail ESMTP\"");
  CHECK(sentence("\xff\xfd\x18\x20") ==
        "the peer does not speak Cleave: its bytes begin with ff fd 18 20");
}

TEST_CASE("the magic is checked as soon as its first bytes arrive") {
  CHECK(codeOfMagic("") == "");
  CHECK(codeOfMagic("C") == "");
  CHECK(codeOfMagic("CLV") == "");
  CHECK(codeOfMagic("CLVE and more") == "");
  CHECK(codeOfMagic("S") == "not-cleave");
  CHECK(codeOfMagic("CLX") == "not-cleave");
}

TEST_CASE("the checksum covers every byte of header, metadata and payload") {
  std::string start(24, 'h');
  std::string metadata(10, 'm');
  std::string payload(300, 'p');
  const auto checksum = [&] {
    return frameChecksum(bytesOf(start).first<24>(), bytesOf(metadata), bytesOf(payload));
  };
  const std::uint64_t intact = checksum();
  for (std::string* part : {&start, &metadata, &payload}) {
    for (char& c : *part) {
      c ^= 1;
      CHECK(checksum() != intact);
      c ^= 1;
    }
  }
  CHECK(checksum() == intact);
}

TEST_CASE("tensor frames need a stream, and control frames have none") {
  const auto code = [](FrameKind kind, std::uint64_t stream) {
    FrameHeader header;
    header.kind = kind;
    header.stream = stream;
    return errorCode([&] { checkFrame(header, ConnectionState::open); });
  };
  CHECK(code(FrameKind::tensor, 1) == "");
  CHECK(code(FrameKind::tensor, 0) == "bad-frame");
  CHECK(code(FrameKind::segment, 0) == "bad-frame");
  CHECK(code(FrameKind::step, 0) == "");
  CHECK(code(FrameKind::step, 1) == "bad-frame");
}

TEST_CASE("PROTOCOL.md: the table of the header matches encodeHeader") {
  FrameHeader header;
  header.kind = static_cast<FrameKind>(0xA1);
  header.flags = 0xA2A2;
  header.metadataBytes = 0xA3A3A3A3;
  header.payloadBytes = 0xA4A4A4A4;
  header.stream = 0xA5A5A5A5A5A5A5A5;
  header.checksum = 0xA6A6A6A6A6A6A6A6;
  const std::map<std::string, int> marks = {{"kind", 0xA1},          {"flags", 0xA2},
                                            {"metadataBytes", 0xA3}, {"payloadBytes", 0xA4},
                                            {"stream", 0xA5},        {"checksum", 0xA6}};
  const HeaderBytes bytes = encodeHeader(header);
  std::size_t next = 0;
  std::set<std::string> fields;
  for (const auto& row : table("header")) {
    const std::size_t offset = std::stoul(row.at(0));
    const std::size_t size = std::stoul(row.at(1));
    const std::string& field = row.at(2);
    CHECK(offset == next);
    next = offset + size;
    REQUIRE(next <= kHeaderBytes);
    fields.insert(field);
    for (std::size_t at = offset; at < next; ++at) {
      const int byte = static_cast<int>(bytes[at]);
      if (field == "magic") {
        CHECK(byte == kMagic.at(at));
      } else if (field == "version") {
        CHECK(byte == kWireVersion);
      } else {
        CHECK(byte == marks.at(field));
      }
    }
  }
  CHECK(next == kHeaderBytes);
  CHECK(fields.size() == 8);
}

TEST_CASE("PROTOCOL.md: the code writes and accepts the example frame") {
  std::vector<std::byte> bytes;
  std::istringstream words(section("example"));
  for (std::string word; words >> word;) {
    if (word != "```") bytes.push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
  }
  wire::Bye bye;
  bye.set_reason("done");
  const std::string metadata = bye.SerializeAsString();
  REQUIRE(bytes.size() == kHeaderBytes + metadata.size());

  const FrameHeader header = decodeHeader(std::span(bytes).first<kHeaderBytes>());
  CHECK(header.kind == FrameKind::bye);
  CHECK(header.metadataBytes == metadata.size());
  CHECK(std::equal(metadata.begin(), metadata.end(), bytes.begin() + kHeaderBytes,
                   [](char c, std::byte byte) { return static_cast<std::byte>(c) == byte; }));
  CHECK(header.checksum == frameChecksum(std::span(bytes).first<24>(), bytesOf(metadata), {}));
}

TEST_CASE("PROTOCOL.md: numbers, names, messages, states and caps of the kinds match the code") {
  std::set<int> numbers;
  for (const auto& row : table("kinds")) {
    const int number = std::stoi(row.at(0));
    const auto kind = static_cast<FrameKind>(number);
    INFO("kind " << number);
    numbers.insert(number);
    CHECK(frameKindName(kind) == row.at(1));
    CHECK(wire::Bye::descriptor()->file()->FindMessageTypeByName(row.at(4)) != nullptr);
    const std::string states = ", " + row.at(3) + ",";
    for (const auto& [name, state] : kStates) {
      INFO(name);
      const auto code = [&, inState = state](std::size_t metadata, std::size_t payload) {
        FrameHeader header;
        header.kind = kind;
        header.metadataBytes = static_cast<std::uint32_t>(metadata);
        header.payloadBytes = static_cast<std::uint32_t>(payload);
        header.stream = isTensorData(kind) ? 1 : 0;
        return errorCode([&] { checkFrame(header, inState); });
      };
      if (states.find(", " + name + ",") == std::string::npos) {
        CHECK(code(0, 0) == "unexpected-frame");
        continue;
      }
      const std::size_t handshakeMetadata = kMaxHandshakeBytes - kHeaderBytes;
      const std::size_t metadata =
          state == ConnectionState::open ? std::stoul(row.at(5)) : handshakeMetadata;
      const std::size_t payload = std::stoul(row.at(6));
      CHECK(code(metadata, payload) == "");
      CHECK(code(metadata + 1, payload) == "frame-too-large");
      CHECK(code(metadata, payload + 1) == "frame-too-large");
      CHECK(code(0xFFFFFFFF, 0) == "frame-too-large");
    }
  }
  for (int number = 0; number < 256; ++number) {
    CHECK(numbers.contains(number) == !frameKindName(static_cast<FrameKind>(number)).empty());
  }
}

TEST_CASE("PROTOCOL.md: the limits match the code") {
  const ConnectionOptions options;
  const auto milliseconds = [](auto time) {
    return static_cast<std::size_t>(std::chrono::milliseconds(time).count());
  };
  const std::map<std::string, std::size_t> limits = {
      {"header", kHeaderBytes},
      {"handshake frame, whole", kMaxHandshakeBytes},
      {"metadata", kMaxMetadataBytes},
      {"metadata of Tensor and Segment", kMaxTensorMetadataBytes},
      {"segment, maximum", kMaxSegmentBytes},
      {"segment chosen by the sender, minimum", kMinSegmentBytes},
      {"frames that wait to be sent", kMaxQueued},
      {"TLS handshake, read", kMaxTlsHandshakeBytes},
      {"TLS handshake", milliseconds(options.tlsDeadline)},
      {"handshake", milliseconds(options.helloDeadline)},
      {"Ping every", milliseconds(options.pingEvery)},
      {"silence", milliseconds(options.pingEvery + options.pingTimeout)},
      {"wait after a Failure", milliseconds(kFailureWait)},
      {"wait after a Bye", milliseconds(kByeWait)},
      {"frame time before its rate is measured", milliseconds(options.frame.grace)},
      {"minimum rate of a frame after that time",
       static_cast<std::size_t>(options.frame.bytesPerSecond)},
      {"control frames at once", static_cast<std::size_t>(ControlAllowance::kIdle)},
      {"control frames per second", static_cast<std::size_t>(ControlAllowance::kPerSecond)},
      {"control frames per tensor", static_cast<std::size_t>(ControlAllowance::kPerTensor)},
      {"control frames per segment that is not short",
       static_cast<std::size_t>(ControlAllowance::kPerLongSegment)},
      {"size below which a segment is short", ControlAllowance::kShortSegmentBytes},
      {"stream of a probe", kMaxProbeBytes},
      {"probe session", milliseconds(kMaxProbeSession)},
      {"batches of a trial", kMaxTrialBatches},
      {"trial session", milliseconds(kMaxTrialSession)}};
  std::map<std::string, std::size_t> documented;
  for (const auto& row : table("limits")) documented[row.at(0)] = std::stoul(row.at(1));
  CHECK(documented == limits);
}

TEST_CASE("PROTOCOL.md: every code that can reach a peer is in the table of errors") {
  std::set<std::string> documented;
  for (const char* name : {"errors", "tls"}) {
    for (const auto& row : table(name)) documented.insert(row.at(0));
  }
  std::set<std::string> thrown;
  for (const char* folder :
       {"common/net", "common/codec", "common/engine", "common/link", "common/record",
        "common/model", "common/run", "common/device", "compression", "server"}) {
    const std::filesystem::path root = std::filesystem::path(CLEAVE_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension();
      if (extension == ".cpp" || extension == ".h") collectCodes(readFile(entry.path()), thrown);
    }
  }
  CHECK(thrown.contains("not-cleave"));
  // These codes are never sent: they concern this side's own files and configuration, or the
  // connection is already lost.
  for (const char* own : {"connection-lost",
                          "connection-closed",
                          "bad-config",
                          "bad-defence",
                          "cannot-accept",
                          "too-few-descriptors",
                          "batch-norm-too-few",
                          "bad-label",
                          "bad-model-file",
                          "no-model-file",
                          "cannot-bind",
                          "port-in-use",
                          "unsafe-bind",
                          "bad-device",
                          "no-certificates",
                          "bad-certificate-file",
                          "key-mismatch",
                          "certs-exist",
                          "no-certs",
                          "no-such-client",
                          "bad-name",
                          "bad-address",
                          "bad-certificate",
                          "cannot-read",
                          "openssl-failed",
                          "no-status",
                          "not-writable",
                          "status-off",
                          "unconfined-graphs",
                          "bad-status",
                          "bad-metric",
                          "bad-target",
                          "status-exposed",
                          "store-in-use",
                          "no-such-session",
                          "connection-replaced",
                          "park-timeout",
                          "park-ended",
                          "no-run",
                          "weights-too-large",
                          "bad-profile",
                          "bad-secret",
                          "no-client",
                          "no-secret",
                          "relay-needs-tls",
                          "relay-replaced",
                          "unsafe-dial",
                          "unsafe-edge",
                          "unsafe-replicas",
                          "wrong-use"}) {
    CHECK(thrown.erase(own) == 1);
    CHECK_FALSE(documented.contains(own));
  }
  for (const std::string& code : thrown) {
    INFO(code);
    CHECK(documented.contains(code));
  }
}
