// Owns the descriptor of a file, folder or socket, and closes it when destroyed.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cleave {

class OpenFile {
 public:
  OpenFile() = default;
  // Takes ownership of the descriptor; negative: none.
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    other.close();
    return *this;
  }
  ~OpenFile() { close(); }

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

  // Returns 0 or the errno. Does nothing if there is no descriptor.
  int close() {
    const int descriptor = std::exchange(descriptor_, -1);
    return descriptor >= 0 && ::close(descriptor) != 0 ? errno : 0;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace cleave
