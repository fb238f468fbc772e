// Measures the computing speed of this process once at its start. Recorded speeds can be compared
// only if this speed is known too. The check also reveals a slow LibTorch before a long training
// run.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

struct SelfCheck {
  int cores = 1;    // cores that the process may use
  int threads = 1;  // threads that it computes with; the values below are for all of them together
  std::string instructionSet;  // used by LibTorch's own kernels: "AVX2", "AVX512", "DEFAULT"
  double gigaflops = 0;        // fp32 matrix multiplication, in 1e9 operations per second
  double copyGigabytes = 0;    // memory to memory, in 1e9 bytes per second
  double seconds = 0;          // duration of the check
};

// Measures for about 50 ms with `threads`, which remains LibTorch's setting on this thread. Draws
// no random numbers and changes no other state. Call on the device thread, before it computes.
SelfCheck measureMachine(int threads);

// Messages with advice if LibTorch is slower than it should be; empty otherwise. `processorFlags`
// as in environment.json.
std::vector<std::string> slownessAdvice(const SelfCheck& check,
                                        const std::vector<std::string>& processorFlags);

// The result of measureMachine() at the first call, repeated once if it is slow. Do not call it on
// two threads at the same time.
const SelfCheck& machineSpeed(int threads);

// Logs the speed of the machine in one line, and warns if it is slow.
void checkMachine(int threads);

// The speed of the machine, for environment.json; null if it has not been measured.
nlohmann::json selfCheckJson();

}  // namespace cleave
