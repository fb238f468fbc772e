// Replaces damaged samples (data.skip). No Torch.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "client/data/samples/dataset.h"

namespace cleave {

// The same dataset, but a sample that cannot be read (SampleDamaged) is replaced by
// the next readable sample, wrapping around at the end. A warning is logged once per damaged
// sample. If more than `limit` samples are damaged, reading throws "sample-damaged". The choice of
// the replacement does not depend on the order of reads. label() and sampleName() still describe
// the damaged sample. Any thread.
std::shared_ptr<const Dataset> skipDamaged(std::shared_ptr<const Dataset> data,
                                           std::uint32_t limit);

// The samples of a dataset from skipDamaged() that have been replaced so far; empty for other
// datasets.
std::set<std::uint32_t> replacedSamples(const Dataset& data);

}  // namespace cleave
