#include "common/codec/codec.h"

namespace cleave {

NonFiniteError::NonFiniteError(const Key& key)
    : RunError("non-finite", toString(key) + " holds NaN or infinity, which its codec cannot carry",
               "lower the learning rate or clip gradients; to inspect the values, send the flow "
               "with codec none") {}

CodecState Codec::restoreState(std::span<const std::byte>) const {
  throw RunError("bad-checkpoint", "codec " + spec() + " has no state to restore",
                 "restore it with the configuration of the run that saved it");
}

}  // namespace cleave
