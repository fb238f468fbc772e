// The codecs that the contract tests and the fuzz targets use.
#pragma once

#include <string>
#include <vector>

#include "compression/registry.h"

namespace cleave::test {

// The example of each row of the codec table, and further parameters that take other code paths.
inline std::vector<std::string> contractSpecs() {
  std::vector<std::string> specs;
  for (const CodecRow& row : codecTable()) specs.emplace_back(row.example);
  for (const char* bits : {"1", "3", "4", "12", "16"})
    specs.push_back("uniform:bits=" + std::string(bits));
  for (const char* parameters :
       {"bits=1", "bits=3", "bits=4,size=32", "bits=5,size=1024", "bits=2,rounding=stochastic",
        "bits=8,header=fp16", "bits=7,size=128,header=fp16,rounding=stochastic",
        "bits=3,rotation=hadamard", "bits=8,size=1024,rounding=stochastic,rotation=hadamard"})
    specs.push_back("block:" + std::string(parameters));
  for (const char* spec : {"sort:q=3,s=1,select=exact",
                           "sort:q=1,s=0,select=exact",
                           "sort:q=2,s=5,select=sampled",
                           "sort:q=8,s=8,select=sampled",
                           "fast:q=7,s=4,boundaries=all",
                           "topk:ratio=0.5",
                           "topk:ratio=0.01",
                           "topk:ratio=1",
                           "randtopk:ratio=0.9,alpha=1",
                           "kmeans:bits=8,iterations=3",
                           "kmeans:bits=1,iterations=50",
                           "power:rank=1,iterations=1(uniform:bits=8)",
                           "svd:rank=1(topk:ratio=0.5)",
                           "svd:rank=7",
                           "fp8:format=e5m2",
                           "zstd:level=1(none)",
                           "zstd:level=19(uniform:bits=3)",
                           "rans(none)",
                           "rans(topk:ratio=0.5)",
                           "adaptive:bits=0.5,size=32",
                           "adaptive:bits=2.5,size=1024",
                           "adaptive:bits=8",
                           "delta:first_bits=1,skip=0.1(none)",
                           "rans(delta:first_bits=4,skip=0(topk:ratio=0.1))",
                           "channels(none)",
                           "channels(topk:ratio=0.1)",
                           "rans(channels(adaptive:bits=2))",
                           "delta:first_bits=8,skip=0.1(channels(block:bits=4))"})
    specs.emplace_back(spec);
  return specs;
}

}  // namespace cleave::test
