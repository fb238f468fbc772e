// Immutable bytes together with the memory that they are in. Copies share it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace cleave {

class HeldBytes {
 public:
  HeldBytes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a vector's bytes are the simplest case
  HeldBytes(std::vector<std::byte> bytes) {
    const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    bytes_ = *owner;
    owner_ = owner;
  }
  // `owner` keeps the memory of `bytes`.
  HeldBytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  std::span<const std::byte> span() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // A part of these bytes, which keeps all of them.
  HeldBytes part(std::span<const std::byte> bytes) const { return {bytes, owner_}; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace cleave
