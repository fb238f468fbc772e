// A simulated world in which the threads of several programs run in one process: one thread runs at
// a time, and a seed chooses which one. Time jumps ahead when all threads wait, and advances a
// little at each switch and clock read. So a run of the real client and the real server is
// reproducible from its seed, and hours of timeouts cost nothing.
//
// libc.cpp defines the functions of the C library that wait, tell the time, or use files and
// sockets; they replace the C library's in the whole process. On a thread of this world they are
// simulated; on any other thread they do what they always do.
//
// A node stands for a machine. Its threads, descriptors and files belong to it, and it can be
// killed at any switch between threads.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace cleave::sim {

using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
inline constexpr Nanoseconds kSecond = 1'000'000'000;

enum Node : int { kDirector = 0, kClient = 1, kServer = 2, kNodes = 3 };

// ---- For the director of a simulation ----

// Makes the calling thread the world's first one, on the node kDirector. Once per process.
// `wallClock`: the initial CLOCK_REALTIME.
void begin(std::uint64_t seed, Nanoseconds wallClock);
// Starts a thread of this node.
void start(Node node, std::function<void()> program);
void sleep(Nanoseconds time);
Nanoseconds now();
// Sets the offset of CLOCK_REALTIME on all nodes; replaces the previous offset.
void shiftWallClock(Nanoseconds by);
// A random number below `bound`, from the seed.
std::uint64_t draw(std::uint64_t bound);
// Thread switches since begin().
std::uint64_t switches();
// Writes and other changes that the node has made to its files.
std::uint64_t fileCalls(Node node);

// The node's threads never run again, and its descriptors are closed. With `power`, the disk also
// loses what has not been synchronised. Takes effect at the first switch with a number of at
// least `at` at which no thread of the node holds a mutex, since another node may need that mutex.
void killAt(Node node, std::uint64_t at, bool power);
// Like killAt(), but just before the change with this number that the node makes to its files, even
// if its threads hold mutexes.
void killAtFileCall(Node node, std::uint64_t call, bool power);
bool isAlive(Node node);

// `count` changes that the node makes to its files, from number `first` on, fail with this error.
void failFiles(Node node, std::uint64_t first, std::uint64_t count, int error);

// Files under this folder belong to the node.
void setFolder(Node node, const std::string& folder);

// ---- For libc.cpp; all of these must be called on a thread of the world ----

struct Thread;
bool isInside();  // whether the calling thread belongs to the world
Thread* createThread(void* (*function)(void*), void* argument);
void* joinThread(Thread* thread);
Thread* currentThread();
// Wait until wakeOne() or wakeAll() is called for this address, or one of the descriptors is ready.
// Return false if the deadline passes first.
bool waitFor(const void* address, Nanoseconds deadline, const char* what);
bool waitForFiles(const pollfd* files, std::size_t count, Nanoseconds deadline);
void wakeOne(const void* address);
void wakeAll(const void* address);
// May let another thread run. `caller`: the code that called the function of the C library. Never
// switches in a library's code: a node can be killed at a switch, and the killed thread would leave
// library state that both nodes share, such as a cache of kernels, half-built.
void maySwitch(const void* caller);
// holdSwitches(1) disables switches of the calling thread until holdSwitches(-1), except where it
// must wait.
void holdSwitches(int change);
void countLocks(int change);
Nanoseconds wallClock();
// Called when a program reads the clock. Each read advances time, by more with each repeat, so that
// a loop that polls the clock ends.
void lookAtClock();
Node currentNode();
// Returns only if the calling thread belongs to another node.
void killNow(Node node, bool power);
void opened(int file);
void closed(int file);

// Files. The first two return the errno to fail with, or 0.
int beforeChange(const char* path);
int beforeWrite(int file);
void openedFile(int file, const char* path, bool isNew);
void wrote(int file);
void synced(int file);
// Call before the change, since it keeps a copy of the old file.
void renames(const char* from, const char* to);
void removes(const char* path);

}  // namespace cleave::sim
