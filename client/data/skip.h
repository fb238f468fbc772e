// Replaces damaged samples (data.skip). No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "client/data/dataset.h"

namespace cleave {

// The same dataset, but a sample that cannot be read (UsageError "sample-damaged") is replaced by
// the next one that can be read, wrapping around at the end. Each damaged sample is logged once as
// a warning. If more than `limit` samples are damaged, reading throws "sample-damaged". Which
// sample replaces which does not depend on the order of reads. label() and sampleName() remain
// those of the damaged sample. Any thread.
std::shared_ptr<const Dataset> skipDamaged(std::shared_ptr<const Dataset> data,
                                           std::uint32_t limit);

// The samples of a dataset from skipDamaged() that have been replaced so far; empty for other
// datasets.
std::set<std::uint32_t> replacedSamples(const Dataset& data);

}  // namespace cleave
