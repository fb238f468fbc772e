// Replica 0's part of a group: admits the connections of all replicas, its own too, and sends each
// value to all of them. If a replica is lost after all have joined, the group ends.
//
// A replica connects to the group port and sends its hello:
//
//   "cleave-replica 1\n" | digest of the group's name, 32 bytes | u8 rank | u8 number of replicas
//
// The hub answers with `accepted`, `taken` or `differs`, and its own proof that it knows the name;
// then both send messages (group_connection.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/sha256.h"
#include "common/replicas/group_connection.h"

namespace cleave {

inline constexpr std::size_t kMaxReplicas = 16;

struct GroupHello {
  std::string digest;  // memberDigest()
  std::size_t rank = 0;
  std::size_t replicas = 0;
};
inline constexpr std::size_t kHelloBytes = 17 + kSha256Bytes + 2;
std::string encodeHello(const GroupHello& hello);
// The digest is empty if the bytes are not a hello.
GroupHello decodeHello(std::string_view bytes);

// 32 bytes that only those who know the group's name can compute.
std::string memberDigest(std::string_view groupName);
std::string hubProof(std::string_view groupName);

// All functions except the constructor and ended(): io thread.
class GroupHub : public std::enable_shared_from_this<GroupHub> {
 public:
  GroupHub(std::string_view groupName, std::size_t replicas, std::chrono::milliseconds timeout);

  const std::string& digest() const { return digest_; }
  // Accepts or refuses a connection whose hello has this group's digest. Closes it if the group is
  // ending.
  void admit(const GroupHello& hello, SharedSocket socket);
  // Ends the group: closes all connections after everything sent is written.
  void finish();
  // Becomes ready when finish() was called, or a replica was lost, and all connections are closed.
  std::shared_future<void> ended() const { return ended_; }

 private:
  using Member = std::shared_ptr<GroupConnection>;

  GroupMessage::Kind answerTo(const GroupHello& hello) const;
  void announceMissing();
  void sendAll(const GroupMessage& message);
  void memberEnded(std::size_t rank, const Member& member, const std::string& reason);
  void noticeEnd();

  const std::string digest_;
  const std::string proof_;
  const std::chrono::milliseconds timeout_;
  std::vector<Member> members_;  // by rank; nullptr: not connected
  bool isComplete_ = false;      // all have joined
  bool isEnding_ = false;
  bool hasEnded_ = false;
  std::promise<void> end_;
  const std::shared_future<void> ended_ = end_.get_future().share();
};

}  // namespace cleave
