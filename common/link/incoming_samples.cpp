#include "common/link/incoming_samples.h"

#include <algorithm>
#include <string>

namespace cleave {

void IncomingSamples::received(const SampleNumbers& samples) {
  const std::string batch = "the samples of step " + std::to_string(samples.step);
  if (trainSamples_ == 0) {
    throw ProtocolError("unexpected-message", batch + " arrived, but no codec keeps samples");
  }
  if (samples.step != step_) {
    if (samples.step < step_ || decided_ < step_) {
      throw ProtocolError(
          "step-gap", batch + " arrived, but step " + std::to_string(step_) + " is not decided");
    }
    step_ = samples.step;
    count_ = 0;
  }
  if (samples.first != count_ || samples.numbers.size() > maxBatch_ - count_) {
    throw ProtocolError("bad-metadata", batch + " from position " + std::to_string(samples.first) +
                                            " arrived, but " + std::to_string(count_) +
                                            " have arrived of at most " +
                                            std::to_string(maxBatch_));
  }
  const auto max = std::max_element(samples.numbers.begin(), samples.numbers.end());
  if (*max >= trainSamples_) {
    throw ProtocolError("bad-metadata", batch + " include " + std::to_string(*max) +
                                            ", but the run has " + std::to_string(trainSamples_));
  }
  count_ += static_cast<std::uint32_t>(samples.numbers.size());
}

}  // namespace cleave
