// A run's scalars for TensorBoard: an event file, written by the recorder's thread. Each record is
// a message of proto/tensorboard.proto in TFRecord framing. docs/tracking.md lists the tags.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/files/record.h"

namespace cleave {

// CRC-32C (Castagnoli).
std::uint32_t crc32c(std::string_view bytes);

// Returns `data` as one record: its length (8 bytes, little endian), the length's masked CRC-32C (4
// bytes), the data, and their masked CRC-32C.
std::string framedRecord(std::string_view data);

class EventFile {
 public:
  // Creates a file in `folder`, and the folder if necessary. Each process that continues a run
  // writes its own file; TensorBoard reads the files in the order of their names. Throws RunError.
  EventFile(Recorder& recorder, const std::string& folder);

  using Scalar = std::pair<std::string, double>;  // tag, value
  // Discards the events that earlier files contain for this and later steps, because the run
  // repeats these steps. Does nothing without earlier files. This and the following functions do
  // not block and are not thread-safe.
  void replaceFrom(std::uint64_t step);
  // Values are stored with 32 bits, like all scalars in TensorBoard.
  void scalars(std::uint64_t step, const std::vector<Scalar>& values);
  // Text in Markdown.
  void text(const std::string& tag, const std::string& markdown);

  // The errno of the failed write, or 0. After a failure the file takes no more events.
  int error() const { return file_->error(); }
  const std::string& path() const { return file_->path(); }

 private:
  bool hasEarlier_ = false;  // whether the folder has earlier files
  std::shared_ptr<Recorder::Stream> file_;
};

}  // namespace cleave
