#include "common/replicas/group_hub.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <utility>

#include "common/core/units.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using Kind = GroupMessage::Kind;

constexpr std::string_view kMagic = "cleave-replica 1\n";
static_assert(kHelloBytes == kMagic.size() + kSha256Bytes + 2);

// Empty if they agree.
std::string differenceText(std::size_t own, const GroupHello& hello) {
  if (hello.replicas == own && hello.rank < own) return {};
  return "replica 0 has " + countText(own, "replica") + ", and this one is replica " +
         std::to_string(hello.rank) + " of " + std::to_string(hello.replicas);
}

}  // namespace

std::string encodeHello(const GroupHello& hello) {
  return std::string(kMagic) + hello.digest + static_cast<char>(hello.rank) +
         static_cast<char>(hello.replicas);
}

GroupHello decodeHello(std::string_view bytes) {
  if (bytes.size() != kHelloBytes || !bytes.starts_with(kMagic)) return {};
  return {.digest = std::string(bytes.substr(kMagic.size(), kSha256Bytes)),
          .rank = static_cast<unsigned char>(bytes[kHelloBytes - 2]),
          .replicas = static_cast<unsigned char>(bytes[kHelloBytes - 1])};
}

std::string memberDigest(std::string_view groupName) {
  return sha256Of("member\n" + std::string(groupName));
}

std::string hubProof(std::string_view groupName) {
  return sha256Of("hub\n" + std::string(groupName));
}

GroupHub::GroupHub(std::string_view groupName, std::size_t replicas,
                   std::chrono::milliseconds timeout)
    : digest_(memberDigest(groupName)),
      proof_(hubProof(groupName)),
      timeout_(timeout),
      members_(replicas) {}

void GroupHub::admit(const GroupHello& hello, SharedSocket socket) {
  if (isEnding_) return;
  const asio::any_io_executor executor = socket->get_executor();
  const auto member = std::make_shared<GroupConnection>(std::move(socket), timeout_);
  const Kind answer = answerTo(hello);
  if (answer == Kind::accepted) members_[hello.rank] = member;
  asio::co_spawn(executor,
                 member->run([self = shared_from_this(), answer](const GroupMessage& message) {
                   if (answer == Kind::accepted && message.kind == Kind::value) {
                     self->sendAll(message);
                   }
                 }),
                 [self = shared_from_this(), member, rank = hello.rank](const std::exception_ptr&,
                                                                        const std::string& reason) {
                   self->memberEnded(rank, member, reason);
                 });
  member->send({answer, proof_, differenceText(members_.size(), hello)});
  if (answer != Kind::accepted) return member->finish();
  announceMissing();
}

GroupMessage::Kind GroupHub::answerTo(const GroupHello& hello) const {
  if (!differenceText(members_.size(), hello).empty()) return Kind::differs;
  return members_[hello.rank] != nullptr ? Kind::taken : Kind::accepted;
}

void GroupHub::announceMissing() {
  std::string missing;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank] == nullptr) missing += static_cast<char>(rank);
  }
  isComplete_ = missing.empty();
  sendAll({Kind::missing, "", missing});
}

void GroupHub::sendAll(const GroupMessage& message) {
  for (const Member& member : members_) {
    if (member != nullptr) member->send(message);
  }
}

void GroupHub::memberEnded(std::size_t rank, const Member& member, const std::string& reason) {
  if (rank >= members_.size() || members_[rank] != member) return;  // it was refused
  members_[rank] = nullptr;
  if (isEnding_) return noticeEnd();
  if (!isComplete_) return announceMissing();
  sendAll({Kind::lost, std::string(1, static_cast<char>(rank)), reason});
  finish();
}

void GroupHub::finish() {
  isEnding_ = true;
  for (const Member& member : members_) {
    if (member != nullptr) member->finish();
  }
  noticeEnd();
}

void GroupHub::noticeEnd() {
  const bool hasMembers = std::any_of(members_.begin(), members_.end(),
                                      [](const Member& member) { return member != nullptr; });
  if (hasMembers || hasEnded_) return;
  hasEnded_ = true;
  end_.set_value();
}

}  // namespace cleave
