#include "common/net/frames/metadata.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>

#include <string>
#include <utility>
#include <vector>

#include "common/core/printable.h"

namespace cleave {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void makeTextPrintable(Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  std::string scratch;
  if (!field.is_repeated()) {
    const std::string& text = reflection.GetStringReference(message, &field, &scratch);
    std::string clean = printable(text);
    if (clean != text) reflection.SetString(&message, &field, std::move(clean));
    return;
  }
  for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
    const std::string& text = reflection.GetRepeatedStringReference(message, &field, j, &scratch);
    std::string clean = printable(text);
    if (clean != text) reflection.SetRepeatedString(&message, &field, j, std::move(clean));
  }
}

}  // namespace

void silenceProtobuf() { google::protobuf::SetLogHandler(nullptr); }

// Protobuf's reflection represents a map as a repeated message with a key and a value.
void makePrintable(Message& message) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;  // the set fields
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_STRING) {
      makeTextPrintable(message, *field);
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    } else if (!field->is_repeated()) {
      makePrintable(*reflection.MutableMessage(&message, field));
    } else {
      for (int j = 0; j < reflection.FieldSize(message, field); ++j) {
        makePrintable(*reflection.MutableRepeatedMessage(&message, field, j));
      }
    }
  }
}

void parseInto(Message& message, FrameKind kind, std::span<const std::byte> metadata) {
  if (!message.ParseFromArray(metadata.data(), static_cast<int>(metadata.size()))) {
    throw ProtocolError("bad-metadata",
                        "the metadata of a " + std::string(frameKindName(kind)) + " is not valid");
  }
  makePrintable(message);
}

}  // namespace cleave
