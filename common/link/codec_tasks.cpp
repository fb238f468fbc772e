#include "common/link/codec_tasks.h"

#include <algorithm>
#include <exception>

#include "common/files/sha256.h"

namespace cleave {

void CodecTasks::enqueue(std::function<void(TensorCodecs&)> task) {
  ++unfinished_;
  auto guarded = [self = shared_from_this(), task = std::move(task)] {
    try {
      task(self->codecs_);
    } catch (...) {
      self->slot_->fail(std::current_exception());
    }
    --self->unfinished_;
  };
  if (!queue_) return slot_->post(std::move(guarded));
  queue_->post(std::move(guarded));
}

// ---- Digests ----

// Computes a SHA-256 in pieces.
class CodecTasks::Digest {
 public:
  explicit Digest(std::span<const std::byte> bytes) : rest_(bytes) {}
  // Returns whether that was the last piece.
  bool addPiece() {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
    const auto piece = rest_.first(std::min(rest_.size(), kPieceBytes));
    sum_.add(piece);
    rest_ = rest_.subspan(piece.size());
    return rest_.empty();
  }
  std::string finish() { return sum_.finish(); }

 private:
  std::span<const std::byte> rest_;
  Sha256 sum_;
};

void CodecTasks::digest(std::span<const std::byte> bytes,
                        std::function<void(std::string sha256)> done) {
  addTo(std::make_shared<Digest>(bytes), std::move(done));
}

void CodecTasks::addTo(std::shared_ptr<Digest> digest,
                       std::function<void(std::string sha256)> done) {
  enqueue([this, digest = std::move(digest), done = std::move(done)](TensorCodecs&) {
    if (!digest->addPiece()) return addTo(digest, done);
    done(digest->finish());
  });
}

}  // namespace cleave
