#include "server/store/disk_share.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "common/core/durable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = 4096;
// Minimum interval between measurements of a full share, since each visits all of the identity's
// files.
constexpr std::chrono::seconds kBetweenMeasurements{5};

std::string textOf(std::int64_t bytes) {
  const double mebibytes = static_cast<double>(std::max<std::int64_t>(0, bytes)) / kMiB;
  return fmt::format("{:.{}f} MiB", mebibytes, mebibytes < 10 ? 1 : 0);
}

}  // namespace

std::size_t folderBytes(const std::string& folder) {
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied,
                                         error);
  if (error) return 0;
  std::size_t bytes = kBlockBytes;
  for (const fs::recursive_directory_iterator end; entry != end; entry.increment(error)) {
    if (error) break;
    std::error_code gone;
    const bool isFile = entry->symlink_status(gone).type() == fs::file_type::regular;
    const std::uintmax_t size = isFile ? entry->file_size(gone) : kBlockBytes;
    if (!gone) bytes += (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  }
  return bytes;
}

DiskShare::DiskShare(std::string identity, std::size_t usedBytes,
                     std::shared_ptr<const DiskRoom> room, Reclaim reclaim)
    : identity_(std::move(identity)),
      room_(std::move(room)),
      reclaim_(std::move(reclaim)),
      atStart_(static_cast<std::int64_t>(usedBytes)),
      used_(static_cast<std::int64_t>(usedBytes)) {}

// Whether `wanted` more bytes fit; if not, remembers why, for error(). `used`: the named ones.
bool DiskShare::fits(std::int64_t used, std::int64_t wanted) {
  const std::int64_t all = used + unnamed_ + wanted;
  const bool isOverShare = all > max_;
  const std::int64_t room = *room_;
  if (!isOverShare && room > 0 && all - atStart_ <= room) return true;
  isByReserve_ = !isOverShare;
  wasFull_ = true;
  return false;
}

bool DiskShare::take(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  while (!takeNow(wanted)) {
    if (!reclaim(wanted)) return false;
  }
  return true;
}

// Returns false if nothing was freed.
bool DiskShare::reclaim(std::int64_t wanted) {
  const std::lock_guard lock(reclaiming_);
  if (fits(used_, wanted)) return true;  // another thread has just freed enough
  if (!reclaim_ || !mayReclaim_.exchange(false)) return false;
  const std::size_t freed = reclaim_(static_cast<std::size_t>(wanted));
  giveBack(freed);
  mayReclaim_ = mayReclaim_ || freed > 0;
  return freed > 0;
}

bool DiskShare::takeNow(std::int64_t wanted) {
  std::int64_t used = used_;
  // used_ never includes bytes that are refused: they would end another run of the identity.
  do {
    if (!fits(used, wanted)) return false;
  } while (!used_.compare_exchange_weak(used, used + wanted));
  return true;
}

bool DiskShare::takeUnnamed(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  while (!fits(used_, wanted)) {
    if (!reclaim(wanted)) return false;
  }
  unnamed_ += wanted;
  return true;
}

RunError DiskShare::error(const std::string& what, std::size_t bytes) const {
  const std::string need =
      bytes == 0 ? "" : what + " needs " + textOf(static_cast<std::int64_t>(bytes)) + " more, but ";
  if (isByReserve_) {
    return RunError("disk-reserve",
                    need + "the server's disk has only " + textOf(*room_) +
                        " left beyond its reserve, too little for more records of " + identity_ +
                        " (limits.disk_reserve_mib in its configuration)",
                    "ask the server's operator to free disk space in the server's store")
        .about(kDisk);
  }
  return RunError("disk-share-full",
                  need + "the files of " + identity_ + " on the server take " +
                      textOf(usedBytes()) + " of the allowed " + textOf(max_),
                  "ask the server's operator to remove old runs ('cleave-server runs list "
                  "--identity " +
                      identity_ +
                      "' shows them), or to raise limits.disk_mib in its configuration or disk_mib "
                      "in its access file")
      .about(kDisk);
}

void DiskShare::measured(std::size_t bytes, std::int64_t before) {
  used_ += static_cast<std::int64_t>(bytes) - before;
  // Lowers atStart_ after removals. Otherwise the identity could write the removed bytes again, in
  // addition to the space that is free now.
  atStart_ = std::min<std::int64_t>(atStart_, used_);
  wasFull_ = false;
  mayReclaim();  // runs may have ended in the meantime
}

DiskShares::DiskShares(std::string store, std::size_t reserveBytes, Reclaim reclaim)
    : store_(std::move(store)),
      reclaim_(std::move(reclaim)),
      reserve_(static_cast<std::int64_t>(reserveBytes)) {
  std::error_code error;
  fs::create_directories(store_, error);  // the server reports a failure later
  lookUpRoom();
  for (fs::directory_iterator entry(store_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string identity = entry->path().filename();
    if (identity.starts_with('.') || !entry->is_directory(error)) continue;
    shares_[identity] = {makeShare(identity, folderBytes(entry->path())), now()};
  }
}

std::shared_ptr<DiskShare> DiskShares::makeShare(const std::string& identity,
                                                 std::size_t usedBytes) const {
  DiskShare::Reclaim reclaim;
  if (reclaim_) {
    reclaim = [all = reclaim_, identity](std::size_t wanted) { return all(identity, wanted); };
  }
  return std::make_shared<DiskShare>(identity, usedBytes, room_, std::move(reclaim));
}

DiskShares::~DiskShares() { thread_.join(); }

void DiskShares::lookUpRoom() const {
  std::error_code error;
  const fs::space_info space = fs::space(store_, error);
  // If the free space is unknown, it is not limited: a failed write then reports the error.
  const auto free =
      error ? std::numeric_limits<std::int64_t>::max() : static_cast<std::int64_t>(space.available);
  *room_ = free - reserve_;
}

std::shared_ptr<DiskShare> DiskShares::open(const std::string& identity, std::size_t maxBytes) {
  Entry& entry = shares_[identity];
  if (!entry.share) entry = {makeShare(identity, 0), now()};
  entry.share->setMax(maxBytes);
  if (!entry.share->take(DiskShare::kRunBytes)) throw entry.share->error();
  entry.share->giveBack(DiskShare::kRunBytes);
  return entry.share;
}

std::map<std::string, std::int64_t> DiskShares::usedBytes() const {
  std::map<std::string, std::int64_t> used;
  for (const auto& [identity, entry] : shares_) used[identity] = entry.share->usedBytes();
  return used;
}

void DiskShares::look(SteadyTime time) {
  if (looks_ > 0)
    return;  // the previous look is not done: the disk is slow, or has very many files
  ++looks_;
  boost::asio::post(thread_, [this] {
    lookUpRoom();
    --looks_;
  });
  for (auto& [identity, entry] : shares_) {
    if (!entry.share->wasFull() || time - entry.measured < kBetweenMeasurements) continue;
    entry.measured = time;
    ++looks_;
    boost::asio::post(thread_, [this, share = entry.share, folder = store_ + "/" + identity] {
      const std::int64_t before = share->namedBytes();
      share->measured(folderBytes(folder), before);
      --looks_;
    });
  }
}

}  // namespace cleave
