// Loads the initial weights of one run's body from the server's store, or keeps them there once
// they have arrived. Files are read and written on the store's threads.
#pragma once

#include <spdlog/logger.h>

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/engine/messages.h"
#include "common/resources/buffer.h"
#include "server/store/disk_share.h"
#include "server/store/weights_store.h"

namespace cleave {

class RunWeights : public std::enable_shared_from_this<RunWeights> {
 public:
  struct Context {
    std::shared_ptr<WeightsStore> store;
    std::string identity;
    std::string sha256;                           // from the Hello
    std::shared_ptr<const StoredWeights> stored;  // null: the client sends them
    std::shared_ptr<DiskShare> disk;
    std::shared_ptr<spdlog::logger> log;  // the run's log
    boost::asio::any_io_executor reading, writing;
  };
  explicit RunWeights(Context context)
      : context_(std::move(context)),
        stored_(std::move(context_.stored)),
        areStored_(stored_ != nullptr) {}

  // Whether the server has stored the weights, so that the client must not send them.
  bool areStored() const { return areStored_; }
  // Any thread. Reads the weights into a buffer of `pool`, verifies them and passes them to
  // `deliver`. On failure, passes an error to `failed`: "weights-damaged", or an exception of the
  // pool or of `deliver`. Both functions are called on the store's thread.
  void load(std::shared_ptr<BufferPool> pool, std::function<void(Blob)> deliver,
            std::function<void(std::exception_ptr)> failed);
  // Any thread. Keeps weights that have the Hello's digest for other runs. If they cannot be kept,
  // logs the reason.
  void keep(Blob weights);
  // Any thread. Makes load() end soon, without a result.
  void cancel() { isCancelled_ = true; }
  // Any thread. Whether load() or keep() still uses memory of the run.
  bool isBusy() const { return busy_ > 0; }
  // Keeps `held` until this object is destroyed, which load() and keep() own while they use memory
  // of the run. The caller drops it, and uses it no more.
  void keepWhileBusy(std::shared_ptr<const void> held) { held_ = std::move(held); }

 private:
  std::optional<Blob> read(BufferPool& pool);
  void write(const Blob& weights);

  std::shared_ptr<const void> held_;             // see keepWhileBusy()
  Context context_;                              // without `stored`
  std::shared_ptr<const StoredWeights> stored_;  // until load() has read them
  const bool areStored_;
  std::atomic<bool> isCancelled_ = false;
  std::atomic<int> busy_ = 0;
};

}  // namespace cleave
