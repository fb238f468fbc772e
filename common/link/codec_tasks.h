// A link's work in the session's codec queue: encoding, decoding, and the digests of blobs. Tasks
// run one at a time and in order; only they can reach the codecs. An exception from a task ends the
// connection. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "common/link/connection_slot.h"
#include "common/link/tensor_codecs.h"
#include "common/resources/codec_executor.h"

namespace cleave {

class CodecTasks : public std::enable_shared_from_this<CodecTasks> {
 public:
  // Without a codec queue in `options`, tasks run on the io thread of `slot`.
  CodecTasks(const TensorCodecOptions& options, std::shared_ptr<BufferPool> pool,
             std::shared_ptr<ConnectionSlot> slot)
      : queue_(options.codecQueue), slot_(std::move(slot)), codecs_(options, std::move(pool)) {}

  // Calls `task`, a void(TensorCodecs&), in the queue. The task must own everything that it uses.
  template <typename Task>
  void post(Task task) {
    // Held by a shared_ptr because std::function requires copyable functions, and one that owns a
    // tensor is not copyable.
    enqueue([shared = std::make_shared<Task>(std::move(task))](TensorCodecs& codecs) {
      (*shared)(codecs);
    });
  }
  // Computes the SHA-256 of `bytes`, which `done` must keep alive, and passes it to `done`, in the
  // queue. Each MiB is a separate task, so that a step's tensors do not wait for a large blob.
  void digest(std::span<const std::byte> bytes, std::function<void(std::string sha256)> done);
  // Whether tasks are running or waiting.
  bool any() const { return unfinished_ > 0; }

 private:
  class Digest;
  void enqueue(std::function<void(TensorCodecs&)> task);
  void addTo(std::shared_ptr<Digest> digest, std::function<void(std::string sha256)> done);

  const std::shared_ptr<CodecQueue> queue_;  // null: the io thread
  const std::shared_ptr<ConnectionSlot> slot_;
  TensorCodecs codecs_;  // in the queue only
  std::atomic<std::size_t> unfinished_ = 0;
};

}  // namespace cleave
