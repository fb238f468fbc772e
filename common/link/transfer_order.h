// Decides which tensors may cross next. Each tensor may cross once, in order, after the tensor that
// it answers. At most the negotiated number of micro-batches may be in flight. This bounds a
// session's memory: a tensor that breaks these rules is rejected before memory is allocated for it.
// io thread only.
//
// clang-format off
//   at a body between cuts 0 and 1:
//   activation/0   within a flow and phase by (step, i)   server: takes a credit
//   activation/1   after its activation/0                 eval: settling it returns the credit
//   gradient/1     after its activation/1; train only
//   gradient/0     after its gradient/1                   train: settling it returns the credit
// clang-format on
//
// A tensor is settled once all of it has been passed to the kernel and the peer has acknowledged
// it. So a peer that acknowledges tensors without reading them gains no credit.
//
// The flows of a body may cross several links: one to the client, and edges to the servers of the
// neighbouring bodies. All of them share one TransferOrder. A micro-batch may then arrive before
// the acknowledgement of an earlier reply, which crosses another link; see takeCredit().
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "common/engine/schedule.h"
#include "common/resources/memory_account.h"
#include "common/topology/key.h"

namespace cleave {

inline constexpr std::size_t kMicroBatchBytes = std::size_t{16} << 10;

class TransferOrder {
 public:
  // `account`: on the server, it is charged kMicroBatchBytes per micro-batch in flight, for
  // messages, records and other objects that are not tensors. Null: nothing is charged.
  // `hasEdges`: whether the body's flows cross several links.
  TransferOrder(Role role, Place body, std::uint32_t inFlight,
                std::shared_ptr<MemoryAccount> account, bool hasEdges = false)
      : role_(role),
        body_(std::move(body)),
        inFlight_(inFlight),
        account_(std::move(account)),
        hasEdges_(hasEdges) {}

  // Call when the peer starts to send this tensor. Throws ProtocolError "bad-key" if the tensor is
  // repeated, out of order, or does not answer a tensor; "too-many-in-flight" if no credit is left.
  void opened(const Key& key);
  // Call when a tensor of this side is ready to be sent. `release` is called if later micro-batches
  // prove that the peer has the whole tensor, although it is not settled. It drops the tensor, or
  // returns false if that is not possible yet because it has not been passed to the kernel.
  void queued(const Key& key, std::function<bool()> release = nullptr);
  void settled(const Key& key);

  // Server: micro-batches in flight.
  std::size_t inFlight() const { return taken_.size(); }

 private:
  using Turn = std::pair<std::uint64_t, std::uint32_t>;  // step, i; {0, 0}: none yet
  using Turns = std::array<FlowMap<Turn>, kPhases>;
  static Turn& at(Turns& turns, const Key& key) {
    return turns[static_cast<std::size_t>(key.phase)][key.flow];
  }
  // A micro-batch in flight.
  struct Credit {
    MemoryCharge charge;
    std::uint64_t number = 0;       // in the order of arrival
    bool isAnswered = false;        // only its last reply is left; see takeCredit()
    std::function<bool()> release;  // of this reply; may be empty
  };
  using MicroBatchKey = std::tuple<Phase, std::uint64_t, std::uint32_t>;
  std::optional<Flow> requestOf(Flow flow) const;
  Flow lastReply(Phase phase) const;
  void checkAnswers(const Key& key);
  void takeCredit(const Key& key);
  void releaseProven();

  const Role role_;
  const Place body_;
  const std::uint32_t inFlight_;
  const std::shared_ptr<MemoryAccount> account_;
  const bool hasEdges_;
  Turns opened_;  // latest turn per phase and flow
  Turns queued_;
  std::map<MicroBatchKey, Credit> taken_;  // server
  std::size_t answered_ = 0;               // of those in `taken_`
  std::uint64_t arrived_ = 0;              // micro-batches
};

}  // namespace cleave
