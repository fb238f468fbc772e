#include "common/link/codec_tasks.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <exception>
#include <new>

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
  explicit Digest(std::span<const std::byte> bytes) : rest_(bytes) {
    if (!state_ || EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) != 1) {
      throw std::bad_alloc();
    }
  }
  // Returns whether that was the last piece.
  bool addPiece() {
    constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
    const auto piece = rest_.first(std::min(rest_.size(), kPieceBytes));
    EVP_DigestUpdate(state_.get(), piece.data(), piece.size());
    rest_ = rest_.subspan(piece.size());
    return rest_.empty();
  }
  std::string finish() {
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    EVP_DigestFinal_ex(state_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr);
    return digest;
  }

 private:
  std::span<const std::byte> rest_;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> state_{EVP_MD_CTX_new(),
                                                                 &EVP_MD_CTX_free};
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
