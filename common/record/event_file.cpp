#include "common/record/event_file.h"

#include <spdlog/fmt/fmt.h>
#include <algorithm>
#include <boost/crc.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "common/core/durable.h"
#include "proto/tensorboard.pb.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Stored instead of a CRC, because a CRC of data that contain CRCs is weak.
std::uint32_t maskedCrc(std::string_view bytes) {
  constexpr std::uint32_t kMaskDelta = 0xa282ead8;
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

template <typename Number>
std::string littleEndian(Number number) {
  std::string bytes;
  for (std::size_t j = 0; j < sizeof number; ++j) {
    bytes += static_cast<char>((number >> (8 * j)) & 0xff);
  }
  return bytes;
}

double secondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string recordOf(const tensorboard::Event& event) {
  return framedRecord(event.SerializeAsString());
}

tensorboard::Event eventAt(std::uint64_t step) {
  tensorboard::Event event;
  event.set_wall_time(secondsSince1970());
  event.set_step(static_cast<std::int64_t>(step));
  return event;
}

// The seconds in the name of the newest event file; 0 if there is none.
std::uint64_t newestIn(const std::string& folder) {
  std::uint64_t newest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    std::uint64_t seconds = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
    newest = std::max(newest, seconds);
  }
  return newest;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::string framedRecord(std::string_view data) {
  const std::string length = littleEndian(std::uint64_t{data.size()});
  return length + littleEndian(maskedCrc(length)) + std::string(data) +
         littleEndian(maskedCrc(data));
}

EventFile::EventFile(Recorder& recorder, const std::string& folder) {
  std::uint64_t seconds = 0;
  try {
    fs::create_directories(folder);
    seconds = newestIn(folder);
  } catch (const fs::filesystem_error& error) {
    throwCannotWrite(folder, "cannot be created", error.code().value());
  }
  hasEarlier_ = seconds > 0;
  // Names must be in the order of the files, even if the clock was set back.
  seconds = std::max(seconds + 1, static_cast<std::uint64_t>(secondsSince1970()));
  tensorboard::Event version = eventAt(0);
  version.set_file_version("brain.Event:2");
  file_ = recorder.stream(fmt::format("{}/{}{:010}.cleave", folder, kPrefix, seconds),
                          recordOf(version));
}

void EventFile::replaceFrom(std::uint64_t step) {
  if (!hasEarlier_) return;
  tensorboard::Event start = eventAt(step);
  start.mutable_session()->set_status(tensorboard::Session::START);
  file_->append(recordOf(start));
}

void EventFile::scalars(std::uint64_t step, const std::vector<Scalar>& values) {
  if (values.empty()) return;
  tensorboard::Event event = eventAt(step);
  for (const auto& [tag, value] : values) {
    tensorboard::Value& each = *event.mutable_summary()->add_values();
    each.set_tag(tag);
    each.set_scalar(static_cast<float>(value));
  }
  file_->append(recordOf(event));
}

void EventFile::text(const std::string& tag, const std::string& markdown) {
  tensorboard::Event event = eventAt(0);
  tensorboard::Value& value = *event.mutable_summary()->add_values();
  value.set_tag(tag);
  value.mutable_metadata()->mutable_plugin()->set_name("text");
  value.mutable_tensor()->set_dtype(tensorboard::Tensor::STRING);
  value.mutable_tensor()->add_strings(markdown);
  file_->append(recordOf(event));
}

}  // namespace cleave
