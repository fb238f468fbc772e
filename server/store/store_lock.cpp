#include "server/store/store_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

// What the server that has the lock has written into it; empty if it has not done so yet.
std::string ownerIn(int file) {
  std::array<char, 300> text{};
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  return got > 0 ? printable({text.data(), static_cast<std::size_t>(got)}) : "";
}

}  // namespace

StoreLock::StoreLock(const std::string& store)
    : file_(::open((store + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
  if (!file_) throwCannotWrite(store + "/.lock", "cannot be opened", errno);
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      processLog()->warn("the store {} cannot be locked, so a second server could use it too: {}",
                         store, std::strerror(errno));
      return;
    }
    const std::string owner = ownerIn(file_.get());
    throw UsageError("store-in-use",
                     "another server uses the store " + store +
                         (owner.empty() ? "" : ": the process with " + owner),
                     "stop that server, or give this one a store of its own: --set store=DIR");
  }
  const std::string owner = "id " + std::to_string(::getpid()) + " on " + hostName();
  // The file only informs, so a full disk does not prevent the server from starting.
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), owner.data(), owner.size(), 0) < 0) {
    processLog()->warn("{}/.lock cannot be written: {}", store, std::strerror(errno));
  }
}

}  // namespace cleave
