// Converting a run spec to its wire format and back loses nothing.
#include "common/run/run_spec.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <string>

#include "proto/wire.pb.h"

using namespace cleave;

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Sets every field to a different value. Maps and lists get one entry.
void fill(Message& message, std::uint64_t& next) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    ++next;
    const std::string text = "text " + std::to_string(next);
    if (field.is_repeated()) {
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          fill(*reflection.AddMessage(&message, &field), next);
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          reflection.AddUInt64(&message, &field, next);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          reflection.AddString(&message, &field, text);
          break;
        default:
          FAIL("a list of another type: " << field.name());
      }
      continue;
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        fill(*reflection.MutableMessage(&message, &field), next);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(&message, &field, text);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection.SetUInt32(&message, &field, static_cast<std::uint32_t>(next));
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection.SetUInt64(&message, &field, next);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(&message, &field, static_cast<double>(next) + 0.5);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(&message, &field, true);
        break;
      default:
        FAIL("a field of another type: " << field.name());
    }
  }
}

}  // namespace

TEST_CASE("every field of a run spec survives both conversions") {
  wire::RunSpec sent;
  std::uint64_t next = 0;
  fill(sent, next);
  CHECK(next > 20);
  wire::RunSpec again;
  toWire(runSpecFromWire(sent), again);
  CHECK(again.DebugString() == sent.DebugString());
  CHECK(runSpecFromWire(again) == runSpecFromWire(sent));
}

TEST_CASE("a run spec without optional fields does not get them by conversion") {
  wire::RunSpec proto;
  toWire(RunSpec{}, proto);
  CHECK(runSpecFromWire(proto) == RunSpec{});
}
