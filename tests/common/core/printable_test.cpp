// Sanitising the texts of a peer, in every field of every message.
#include "common/core/printable.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>

#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/net/connection_messages.h"
#include "common/net/frames/metadata.h"
#include "proto/wire.pb.h"
#include "tests/support/error_code.h"

using namespace cleave;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

// Valid UTF-8 that must not reach a terminal or a log line.
const std::string kHostile =
    std::string("\0", 1) +
    "\x1b[2J\x1b]0;title\x07\r\n\tfake line\x7f\b"  // C0, escape sequences
    "\xc2\x9b"
    "31m\xc2\x9d\xc2\x85"               // C1: CSI, OSC, NEL
    "\xe2\x80\xae\xe2\x81\xa6"          // RLO, LRI
    "\xe2\x80\x8b\xe2\x80\xa8"          // zero width space, line separator
    "\xd8\x9c\xef\xbb\xbf\xef\xbf\xb9"  // Arabic letter mark, BOM, annotation
    "\xf3\xa0\x81\x81";                 // a tag

// Returns whether printable() leaves the text unchanged.
bool isClean(const std::string& text) { return printable(text) == text; }

// Fills every field of the message; string fields get `text`. No message type is recursive.
void fill(Message& message, const std::string& text) {
  const auto& reflection = *message.GetReflection();
  const Descriptor& descriptor = *message.GetDescriptor();
  for (int j = 0; j < descriptor.field_count(); ++j) {
    const FieldDescriptor* field = descriptor.field(j);
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      if (!field->is_repeated()) {
        reflection.SetString(&message, field, text);
      } else {
        for (int k = 0; k < 3; ++k) reflection.AddString(&message, field, text);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      fill(field->is_repeated() ? *reflection.AddMessage(&message, field)
                                : *reflection.MutableMessage(&message, field),
           text);
    } else if (field->type() == FieldDescriptor::TYPE_BYTES) {
      reflection.SetString(&message, field, text);
    }
  }
}

// Calls `function` with the name and the value of each string field. Returns the number of string
// fields.
template <typename Function>
int forEachText(const Message& message, Function function) {
  const auto& reflection = *message.GetReflection();
  const Descriptor& descriptor = *message.GetDescriptor();
  int count = 0;
  for (int j = 0; j < descriptor.field_count(); ++j) {
    const FieldDescriptor* field = descriptor.field(j);
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int k = 0; k < size; ++k) {
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        function(field->full_name(), field->is_repeated()
                                         ? reflection.GetRepeatedString(message, field, k)
                                         : reflection.GetString(message, field));
        ++count;
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        count += forEachText(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, k)
                                                  : reflection.GetMessage(message, field),
                             function);
      }
    }
  }
  return count;
}

std::span<const std::byte> viewOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::unique_ptr<Message> newMessage(const Descriptor& descriptor) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&descriptor)->New());
}

TEST_CASE("ordinary text is unchanged") {
  for (const std::string text : {"", "block:bits=8", "naïve Übung, 日本語, 🙂", "a  b ~"}) {
    CHECK(printable(text) == text);
  }
}

TEST_CASE("line breaks become spaces, and other control characters become question marks") {
  CHECK(printable("a\nb\tc\rd") == "a b c d");
  CHECK(printable("\x1b[2J") == "?[2J");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");
  CHECK(printable("abc\xe2\x80\xae"
                  "def") == "abc?def");
  const std::string clean = printable(kHostile);
  for (const unsigned char c : clean) CHECK((c >= ' ' && c <= '~'));
  CHECK(printable(clean) == clean);
}

TEST_CASE("each byte that is not UTF-8 becomes a question mark") {
  CHECK(printable("\xff\xfe") == "??");
  CHECK(printable("a\xc3") == "a?");                  // truncated
  CHECK(printable("\xc0\xaf") == "??");               // overlong encoding
  CHECK(printable("\xed\xa0\x80") == "???");          // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "????");     // beyond U+10FFFF
  CHECK(printable("\x9b[2J") == "?[2J");              // C1 as a Latin-1 byte
  CHECK(printable("\xe2\x82\xac\xe2\x82") == "€??");  // the second character is truncated
}

TEST_CASE("a long text is cut between characters") {
  CHECK(printable("abcdef", 6) == "abcdef");
  CHECK(printable("abcdefg", 6) == "abc…");
  CHECK(printable("ééé", 6) == "ééé");
  CHECK(printable("éééx", 6) == "é…");
  CHECK(printable("abcd", 3) == "…");
  CHECK(printable(std::string(5000, 'x')).size() == kMaxTextBytes);
  CHECK(printable(std::string(kMaxTextBytes, 'x')).size() == kMaxTextBytes);
}

TEST_CASE("every text field of every message is sanitised") {
  silenceProtobuf();
  const auto* file = wire::Hello::descriptor()->file();
  REQUIRE(file->message_type_count() > 10);
  int texts = 0;
  for (int j = 0; j < file->message_type_count(); ++j) {
    const Descriptor& descriptor = *file->message_type(j);
    INFO(descriptor.full_name());
    const auto sent = newMessage(descriptor);
    fill(*sent, kHostile);
    const auto parsed = newMessage(descriptor);
    parseInto(*parsed, FrameKind::hello, viewOf(sent->SerializeAsString()));
    texts += forEachText(*parsed, [](const std::string& name, const std::string& text) {
      INFO(name);
      CHECK(isClean(text));
      CHECK(text == printable(kHostile));  // the text has not been dropped
    });

    // Invalid UTF-8 is either rejected by protobuf or made printable by Cleave.
    fill(*sent, "\xff\x9b[2J");
    const auto broken = newMessage(descriptor);
    const auto read = [&] {
      parseInto(*broken, FrameKind::hello, viewOf(sent->SerializePartialAsString()));
    };
    const std::string code = errorCode(read);
    CHECK((code.empty() || code == "bad-metadata"));
    makePrintable(*broken);
    forEachText(*broken, [](const std::string&, const std::string& text) { CHECK(isClean(text)); });
  }
  CHECK(texts > 30);
}

TEST_CASE("a digest is bytes and is unchanged") {
  wire::Segment segment;
  segment.set_sha256(kHostile + "\xff");
  const auto parsed =
      parseMetadata<wire::Segment>(FrameKind::segment, viewOf(segment.SerializeAsString()));
  CHECK(parsed.sha256() == kHostile + "\xff");
}

TEST_CASE("a Failure's code and key are short, and its texts are printable") {
  wire::Failure failure;
  failure.set_code(std::string(200, 'x') + "\n");
  failure.set_sentence(kHostile);
  failure.set_hint(kHostile);
  failure.set_key(std::string(200, 'x') + "\n");
  const RunError error = errorFromFailure(viewOf(failure.SerializeAsString()));
  CHECK(error.code().size() == 64);
  CHECK(error.key().size() == 64);
  CHECK(isClean(error.what()));
  CHECK(isClean(error.hint()));
}

TEST_CASE(
    "an error that the peer reports has the kind, the key and the exit code that it has there") {
  const auto received = [](const Error& error) {
    return errorFromFailure(viewOf(failureMetadata(error)));
  };
  const RunError usage =
      received(UsageError("bad-cuts", "a fault", "a hint").about("model.cuts", "a.yaml:3"));
  CHECK(usage.key() == "model.cuts");
  CHECK(usage.location().empty());  // in a file of the peer
  CHECK(usage.kind() == ErrorKind::usage);
  CHECK(usage.exitCode() == 2);
  for (const ErrorKind kind : {ErrorKind::run, ErrorKind::attempt, ErrorKind::link}) {
    const RunError error = received(RunError(kind, "any-code", "a fault", "a hint", 3));
    CHECK(error.kind() == kind);
    CHECK(error.exitCode() == 1);
    CHECK(error.retrySeconds() == 3);
  }
  // The peer was not interrupted.
  CHECK(received(RunError(ErrorKind::interrupt, "interrupted", "")).kind() == ErrorKind::run);
}

TEST_CASE("a Failure of an unknown kind ends the run") {
  wire::Failure failure;
  for (const int kind : {4, -1, 1 << 20}) {
    failure.set_kind(static_cast<wire::Failure::Kind>(kind));
    CHECK(errorFromFailure(viewOf(failure.SerializeAsString())).kind() == ErrorKind::run);
  }
}

}  // namespace

// ---- escaped() ----

namespace {

// Characters of every kind that act on a terminal, and text around them that does not.
const std::string kMixed =
    "a\tb\n\x1b[2J\xc3\xa4\x7f\xc2\x9b\xe2\x80\xae\xf3\xa0\x81\x81\xf0\x9f\x99\x82\r";
const std::string kMixedShown =
    "a\tb\n\\u001b[2J\xc3\xa4\\u007f\\u009b\\u202e\\udb40\\udc41\xf0\x9f\x99\x82\\u000d";

}  // namespace

TEST_CASE("escaped() keeps the lines, and shows what would act on a terminal") {
  CHECK(escaped(kMixed) == kMixedShown);
  CHECK(escaped("\xff"
                "a\xc3") == "?a?");
  CHECK(escaped(escaped(kMixed)) == kMixedShown);
}

TEST_CASE("escaped() keeps the meaning of JSON") {
  const nlohmann::json json = {{"name\xc2\x9b", kMixed}};
  const std::string text = escaped(json.dump(2));
  CHECK(printable(text, text.size()).find('?') == std::string::npos);
  CHECK(nlohmann::json::parse(text) == json);
}

TEST_CASE("an output passes escaped(), however the writes are divided") {
  for (std::size_t each = 1; each <= kMixed.size(); ++each) {
    CAPTURE(each);
    std::ostringstream stream;
    {
      const EscapedOutput output(stream);
      for (std::size_t at = 0; at < kMixed.size(); at += each) stream << kMixed.substr(at, each);
      for (const char c : kMixed) stream << c;
      stream << "\xc3";  // incomplete
    }
    CHECK(stream.str() == kMixedShown + kMixedShown + "?");
    stream << "\x1b";
    CHECK(stream.str().ends_with("\x1b"));  // the stream is as before
  }
}
