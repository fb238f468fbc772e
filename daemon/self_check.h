// What this process can compute with, measured once at its start: figures of speed mean nothing
// without it, and a slow LibTorch should not be found out after a day of training.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

struct SelfCheck {
  int cores = 1;               // that the process may use
  int threads = 1;             // that it computes with; the figures below are of all together
  std::string instructionSet;  // that LibTorch's own kernels use: "AVX2", "AVX512", "DEFAULT"
  double gigaflops = 0;        // 1e9 operations per second of a product of fp32 matrices
  double copyGigabytes = 0;    // 1e9 bytes copied per second, from memory to memory
  double seconds = 0;          // that the check took
};

// Measures with `threads`, which stay LibTorch's number on this thread, for about 50 ms; draws no
// random numbers and leaves no other state behind. The device thread's, before it computes.
SelfCheck measureMachine(int threads);

// Sentences with advice where LibTorch is slower than it should be; empty where all is well.
// `processorFlags` as in environment.json.
std::vector<std::string> slownessAdvice(const SelfCheck& check,
                                        const std::vector<std::string>& processorFlags);

// Measures, logs one line, and warns where that is due. Once a process.
void checkMachine(int threads);

// What checkMachine found, for environment.json; null before it ran.
nlohmann::json selfCheckJson();

}  // namespace cleave
