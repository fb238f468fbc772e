#include "common/codec/codec.h"

#include "common/codec/checkpoint_error.h"

namespace cleave {

NonFiniteError::NonFiniteError(const Key& key)
    : RunError("non-finite",
               toString(key) + " contains NaN or infinity, which its codec cannot encode",
               "lower the learning rate or clip gradients; to inspect the values, send the flow "
               "with codec none") {}

RunError badCheckpoint(const std::string& sentence) {
  return RunError("bad-checkpoint", sentence,
                  "restore it with the configuration and the version of the run that saved it")
      .about("--resume");
}

CodecState Codec::restoreState(std::span<const std::byte>) const {
  throw badCheckpoint("codec " + spec() + " has no state to restore");
}

void checkAccepts(const Codec& codec, const TensorSpec& spec, const std::string& name) {
  const bool acceptsFloats = codec.isIdentity() || !codec.acceptsIntegers();
  if (isFloat(spec.dtype) ? acceptsFloats : codec.acceptsIntegers()) return;
  throw UsageError("bad-codec-spec",
                   "the codec " + codec.spec() + " cannot encode " + name +
                       ", which has elements of " + std::string(dtypeName(spec.dtype)),
                   "use the codec none for it")
      .about("codec");
}

}  // namespace cleave
