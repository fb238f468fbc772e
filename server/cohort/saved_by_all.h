// Tells a run's clients when a checkpoint of its body is durable. The first server of a cohort
// waits until all members have saved their parts too: a member that commits the checkpoint, and
// removes older ones, then knows that every other one can continue from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/messages.h"

namespace cleave {

// io thread.
class SavedByAll {
 public:
  // `members`: the names of those whose parts this server waits for; empty: of none.
  explicit SavedByAll(std::vector<std::string> members)
      : members_(std::move(members)), parts_(members_.size()), leaving_(members_.size()) {}

  // Call for each client before the run starts.
  void addClient(const std::shared_ptr<EngineLink>& link) { clients_.push_back(link); }

  // Call with each Step of the deciding member. Throws ProtocolError "too-many-in-flight" if it
  // asks for a checkpoint before the last one is complete.
  void decided(const StepDecision& decision);
  // Call with each Saved that a member sends. Throws ProtocolError "unexpected-message" if no such
  // part is missing.
  void savedByMember(std::size_t member, const Saved& saved);
  // Call when a member leaves: asks the others to make a checkpoint, and to connect again when the
  // member is back. Throws ProtocolError "unexpected-message" if it has said so before, or at
  // another server.
  void leaves(std::size_t member);
  // Call when this member, which does not take part, wants to. Asks all to make a checkpoint, once.
  void joins(const std::string& name);
  // Call when the body is saved, or could not be.
  void savedHere(const Saved& saved);

 private:
  void reportIfComplete();

  const std::vector<std::string> members_;
  std::vector<std::weak_ptr<EngineLink>> clients_;  // their callbacks own this object
  std::uint64_t step_ = 0;  // of the checkpoint whose parts are being saved; 0: none
  std::optional<Saved> body_;
  std::vector<std::optional<Saved>> parts_;  // by client
  std::vector<bool> leaving_;                // by client
  bool hasAskedToJoin_ = false;              // joins() was called
};

}  // namespace cleave
