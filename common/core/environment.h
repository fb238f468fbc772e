// What a run's figures depend on, for environment.json; and settings a process must start with.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace cleave {

std::string softwareVersion();   // "cleave 0.1.0"
std::string softwareRevision();  // of its sources, in git; empty where it was not built from there

// {software, revision (git), compiler, kernel, cpu {model, cores, flags of interest}, memory_bytes,
// threads, pid, started (UTC)}.
nlohmann::json describeEnvironment(int threads);

// Cores this process may use (sched_getaffinity, cgroup quota).
int usableCores();

// Threads that one side of a run computes with, and why so many, for the log.
struct ThreadCount {
  int threads = 1;
  std::string text;  // "1 of 2 cores: half, since both daemons share this machine"
};
// Those `asked` for; where that is 0, all of `cores`, or half where both daemons share them. Never
// more than `most` (0: no limit) or than there are cores.
ThreadCount chooseThreads(int cores, int asked, int most, bool sharesMachine);

// Before anything else in main. Keeps big tensors in the process instead of giving them back to the
// kernel each time (mallopt), one arena; and, where OMP_WAIT_POLICY is unset, sets it to passive
// and executes the program again, since libgomp reads it while loading: spinning threads would take
// the cores from the io thread and from the other daemon.
void prepareProcess(char** argv);
// Gives memory that nobody uses back to the system, which malloc never does by itself after
// prepareProcess(). Takes some ms for each 100 MiB; a later user of such memory pays for its pages
// again, so call it when something large has ended.
void releaseMemory();

}  // namespace cleave
