#include "server/store/run_weights.h"

#include <boost/asio/post.hpp>
#include <cassert>
#include <utility>

#include "common/core/bytes.h"
#include "common/core/units.h"

namespace cleave {

void RunWeights::load(std::shared_ptr<BufferPool> pool, std::function<void(Blob)> deliver,
                      std::function<void(std::exception_ptr)> failed) {
  ++busy_;
  boost::asio::post(context_.reading,
                    [self = shared_from_this(), pool = std::move(pool),
                     deliver = std::move(deliver), failed = std::move(failed)]() mutable {
                      try {
                        if (auto weights = self->read(*pool)) deliver(*std::move(weights));
                      } catch (...) {
                        failed(std::current_exception());
                      }
                      // The callbacks own parts of the run, so they are released here.
                      deliver = nullptr;
                      failed = nullptr;
                      --self->busy_;
                    });
}

std::optional<Blob> RunWeights::read(BufferPool& pool) {
  // The file may be removed to make room as soon as it has been read.
  assert(stored_);
  const std::shared_ptr<const StoredWeights> stored = std::move(stored_);
  Buffer buffer = pool.acquire(stored->bytes);
  if (!context_.store->read(*stored, buffer.span(), isCancelled_, *context_.disk)) {
    return std::nullopt;
  }
  Blob blob;
  auto owner = std::make_shared<const Buffer>(std::move(buffer));
  blob.bytes = owner->span();
  blob.owner = std::move(owner);
  return blob;
}

void RunWeights::keep(Blob weights) {
  assert(!areStored_);
  ++busy_;
  boost::asio::post(context_.writing,
                    [self = shared_from_this(), weights = std::move(weights)]() mutable {
                      self->write(weights);
                      weights = {};
                      --self->busy_;
                    });
}

void RunWeights::write(const Blob& weights) {
  try {
    context_.store->keep(context_.identity, context_.sha256, textOf(weights.bytes), *context_.disk);
    context_.log->info("the body's initial weights are kept for other runs: {}",
                       bytesText(static_cast<double>(weights.bytes.size())));
  } catch (const std::exception& error) {
    context_.log->warn("the body's initial weights are not kept for other runs: {}", error.what());
  }
}

}  // namespace cleave
