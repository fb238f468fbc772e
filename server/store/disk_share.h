// The disk space that each identity uses in the store. Two limits apply to an identity's records:
// its share (limits.disk_mib), and the server's reserve, which stays free on the disk
// (limits.disk_reserve_mib). Usage is counted as rows are recorded. An identity's folder is
// measured when the server starts. A separate thread measures it again when the share is used up,
// because old runs may have been removed.
#pragma once

#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/files/record.h"

namespace cleave {

// The total size of a folder: all files in it and in its subfolders, each rounded up to blocks of 4
// KiB, and the folders; 0 if the folder does not exist. Links are not followed.
std::size_t folderBytes(const std::string& folder);

// Free bytes on the store's disk beyond the server's reserve; negative if less than the reserve is
// free. Any thread.
using DiskRoom = std::atomic<std::int64_t>;

// One identity's share, common to all its runs. Any thread.
class DiskShare : public RowBudget {
 public:
  // Bytes of a run in addition to its rows: its folder, seven files, some log lines.
  static constexpr std::size_t kRunBytes = std::size_t{64} << 10;

  // Frees at least `wanted` bytes in the identity's folder if possible. Returns the freed bytes.
  using Reclaim = std::function<std::size_t(std::size_t wanted)>;

  // `reclaim` is called if there is no room; it may be empty.
  DiskShare(std::string identity, std::size_t usedBytes, std::shared_ptr<const DiskRoom> room,
            Reclaim reclaim = nullptr);

  // Two limits apply. An identity may use no more than its share. What it has written since the
  // server started must not exceed the space that is still free beyond the reserve. So an identity
  // takes at most half of the free space, and cannot end other identities' runs by filling the
  // disk.
  bool take(std::size_t bytes) override;
  // Call when there is more to reclaim.
  void mayReclaim() { mayReclaim_ = true; }
  void giveBack(std::size_t bytes) { used_ -= static_cast<std::int64_t>(bytes); }
  // The same for files without names, which a measurement of the folder does not find.
  bool takeUnnamed(std::size_t bytes);
  void giveBackUnnamed(std::size_t bytes) { unnamed_ -= static_cast<std::int64_t>(bytes); }
  // The error for a failed take: RunError "disk-share-full" or "disk-reserve". `what` needed the
  // `bytes` of the take: "the checkpoint". Bytes of 0: not said.
  RunError error(const std::string& what = "", std::size_t bytes = 0) const;

  void setMax(std::size_t bytes) { max_ = static_cast<std::int64_t>(bytes); }
  std::int64_t usedBytes() const { return used_ + unnamed_; }
  std::int64_t namedBytes() const { return used_; }
  std::size_t maxBytes() const { return static_cast<std::size_t>(max_); }
  bool wasFull() const { return wasFull_; }  // since it was last measured
  // Sets the usage to the result of a measurement, `bytes`. `before`: namedBytes() when
  // the measurement began.
  void measured(std::size_t bytes, std::int64_t before);

 private:
  bool fits(std::int64_t used, std::int64_t wanted);
  bool takeNow(std::int64_t wanted);
  bool reclaim(std::int64_t wanted);

  const std::string identity_;
  const std::shared_ptr<const DiskRoom> room_;
  const Reclaim reclaim_;
  std::mutex reclaiming_;
  std::atomic<bool> mayReclaim_ = true;
  std::atomic<std::int64_t> atStart_;  // usage at the start, or a lower usage measured later
  std::atomic<std::int64_t> max_{0};
  std::atomic<std::int64_t> used_;  // by files in the identity's folder
  std::atomic<std::int64_t> unnamed_{0};
  std::atomic<bool> wasFull_ = false;
  std::atomic<bool> isByReserve_ = false;  // full because of the reserve
};

// Space of files without names, which is taken from a share until this object is destroyed.
class UnnamedSpace {
 public:
  // Throws DiskShare::error().
  UnnamedSpace(std::shared_ptr<DiskShare> share, std::size_t bytes)
      : share_(std::move(share)), bytes_(bytes) {
    if (!share_->takeUnnamed(bytes_)) throw share_->error("the space of kept samples", bytes_);
  }
  ~UnnamedSpace() { share_->giveBackUnnamed(bytes_); }
  UnnamedSpace(const UnnamedSpace&) = delete;
  UnnamedSpace& operator=(const UnnamedSpace&) = delete;

 private:
  const std::shared_ptr<DiskShare> share_;
  const std::size_t bytes_;
};

// The shares of all identities. io thread only.
class DiskShares {
 public:
  // Frees space of an identity; see DiskShare::Reclaim.
  using Reclaim = std::function<std::size_t(const std::string& identity, std::size_t wanted)>;
  // Measures the folders of `store`.
  DiskShares(std::string store, std::size_t reserveBytes, Reclaim reclaim = nullptr);
  ~DiskShares();
  DiskShares(const DiskShares&) = delete;
  DiskShares& operator=(const DiskShares&) = delete;

  // Returns the identity's share for a new run, after setting its limit to `maxBytes` and taking
  // kRunBytes. Throws RunError "disk-share-full" or "disk-reserve" if there is no room for
  // kRunBytes.
  std::shared_ptr<DiskShare> open(const std::string& identity, std::size_t maxBytes);
  // Updates the free space, and remeasures shares that were full, on the separate thread. Call it
  // about once per second; does not wait.
  void look(SteadyTime time);
  std::int64_t roomBytes() const { return *room_; }
  std::map<std::string, std::int64_t> usedBytes() const;  // by identity

 private:
  struct Entry {
    std::shared_ptr<DiskShare> share;
    SteadyTime measured;
  };
  void lookUpRoom() const;
  std::shared_ptr<DiskShare> makeShare(const std::string& identity, std::size_t usedBytes) const;

  const std::string store_;
  const Reclaim reclaim_;
  const std::int64_t reserve_;
  const std::shared_ptr<DiskRoom> room_ = std::make_shared<DiskRoom>(0);
  std::map<std::string, Entry> shares_;  // by identity
  boost::asio::thread_pool thread_{1};
  std::atomic<std::size_t> looks_ = 0;  // posted to the thread, and not yet done
};

}  // namespace cleave
