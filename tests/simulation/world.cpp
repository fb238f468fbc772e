#include "tests/simulation/world.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <set>
#include <vector>

#include "tests/simulation/disk.h"
#include "tests/simulation/real.h"

extern "C" const char __executable_start,
    etext;  // bounds of this program's code, without libraries

namespace cleave::sim {

struct Thread {
  int number = 0;
  Node node = kDirector;
  bool isWaiting = false;
  bool isDead = false;  // killed with its node
  bool hasEnded = false;
  const void* address = nullptr;  // the address that the thread waits for; may be null
  const char* what = "";
  std::vector<pollfd> files;
  Nanoseconds deadline = kNever;
  bool wasWoken = false;
  int locks = 0;  // mutexes held
  int holds = 0;  // see holdSwitches()
  std::atomic<int> turn{0};
  void* (*function)(void*) = nullptr;
  void* argument = nullptr;
  void* result = nullptr;
};

namespace {

constexpr std::uint64_t kMaxSwitches = 30'000'000;  // a run has about 100,000
constexpr Nanoseconds kMaxTime = 20 * 3600 * kSecond;

struct Kill {
  Node node;
  std::uint64_t at;
  bool power;
};

struct World {
  std::uint64_t random = 0;
  Nanoseconds time = kSecond;
  Nanoseconds wallStart = 0;
  Nanoseconds wallShift = 0;
  std::uint64_t switches = 0;
  int looks = 0;  // clock reads since the last switch
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Kill> kills;
  std::array<bool, kNodes> alive{true};  // at first, the director
  std::array<std::set<int>, kNodes> descriptors;
};

World* world = nullptr;
__thread Thread* self = nullptr;

std::uint64_t next() {  // splitmix64
  std::uint64_t z = world->random += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void futex(std::atomic<int>& word, int operation, int value) {
  real::call(SYS_futex, reinterpret_cast<long>(&word), operation | FUTEX_PRIVATE_FLAG, value, 0, 0,
             0);
}

void giveTurn(Thread& thread) {
  thread.turn.store(1);
  futex(thread.turn, FUTEX_WAKE, 1);
}

void awaitTurn(Thread& thread) {
  while (thread.turn.exchange(0) == 0) futex(thread.turn, FUTEX_WAIT, 0);
}

bool isQuiet(Node node) {
  return std::none_of(world->threads.begin(), world->threads.end(), [&](const auto& thread) {
    return thread->node == node && !thread->isDead && !thread->hasEnded &&
           (thread->locks > 0 || thread->holds > 0);
  });
}

void kill(const Kill& kill) {
  for (const auto& thread : world->threads) {
    if (thread->node == kill.node) thread->isDead = true;
  }
  for (const int file : world->descriptors[kill.node]) {
    disk().forget(file);
    real::close(file);
  }
  world->descriptors[kill.node].clear();
  world->alive[kill.node] = false;
  if (kill.power) disk().losePower(kill.node);
}

void killWhoMustDie() {
  std::erase_if(world->kills, [](const Kill& each) {
    if (each.at > world->switches || !world->alive[each.node] || !isQuiet(each.node)) return false;
    kill(each);
    return true;
  });
}

bool isReady(Thread& thread) {
  if (!thread.isWaiting || thread.wasWoken) return true;
  if (thread.deadline <= world->time) return true;
  return !thread.files.empty() && real::poll(thread.files.data(), thread.files.size(), 0) > 0;
}

[[noreturn]] void giveUp(const char* why) {
  std::fprintf(stderr, "simulation: %s after %llu switches, %.3f s\n", why,
               static_cast<unsigned long long>(world->switches),
               static_cast<double>(world->time) / kSecond);
  for (const auto& thread : world->threads) {
    if (thread->isDead || thread->hasEnded) continue;
    std::fprintf(stderr, "  thread %d of node %d: %s, %d locks\n", thread->number, thread->node,
                 thread->isWaiting ? thread->what : "ready", thread->locks);
  }
  ::_exit(3);
}

// Chooses the next thread to run. If all threads wait, time advances.
Thread& choose() {
  std::vector<Thread*> ready;
  for (;;) {
    Nanoseconds first = kNever;
    for (const auto& thread : world->threads) {
      if (thread->isDead || thread->hasEnded) continue;
      if (isReady(*thread)) {
        ready.push_back(thread.get());
      } else {
        first = std::min(first, thread->deadline);
      }
    }
    if (!ready.empty()) return *ready[next() % ready.size()];
    if (first == kNever) giveUp("all threads wait for each other");
    world->time = std::max(world->time, first);
    if (world->time > kMaxTime) giveUp("the run does not end");
  }
}

void switchThreads() {
  Thread& me = *self;
  if (++world->switches > kMaxSwitches) giveUp("the run does not end");
  world->looks = 0;
  world->time += 1000 + static_cast<Nanoseconds>(next() % 20'000);
  killWhoMustDie();
  Thread& chosen = choose();
  if (&chosen == &me) return;
  giveTurn(chosen);
  if (me.hasEnded) return;
  awaitTurn(me);
}

Thread& addThread(Node node) {
  auto thread = std::make_unique<Thread>();
  thread->number = static_cast<int>(world->threads.size());
  thread->node = node;
  world->threads.push_back(std::move(thread));
  return *world->threads.back();
}

void* runThread(void* argument) {
  Thread& me = *static_cast<Thread*>(argument);
  awaitTurn(me);
  self = &me;
  me.result = me.function(me.argument);
  wakeAll(&me);
  me.hasEnded = true;
  switchThreads();
  self = nullptr;
  return me.result;
}

Thread* launch(Node node, void* (*function)(void*), void* argument) {
  Thread& thread = addThread(node);
  thread.function = function;
  thread.argument = argument;
  pthread_t handle{};
  if (real::createThread(&handle, runThread, &thread) != 0) giveUp("no more threads");
  return &thread;
}

}  // namespace

// ---- The director ----

void begin(std::uint64_t seed, Nanoseconds wallClock) {
  world = new World;  // never destroyed, because threads of killed nodes remain
  world->random = seed;
  world->wallStart = wallClock;
  self = &addThread(kDirector);
}

void start(Node node, std::function<void()> program) {
  world->alive[node] = true;
  auto* const owned = new std::function<void()>(std::move(program));
  launch(
      node,
      [](void* argument) -> void* {
        const std::unique_ptr<std::function<void()>> function(
            static_cast<std::function<void()>*>(argument));
        (*function)();
        return nullptr;
      },
      owned);
}

void sleep(Nanoseconds time) { waitFor(nullptr, world->time + time, "sleep"); }
Nanoseconds now() { return world->time; }

void lookAtClock() {
  constexpr int kDoublings = 14;
  world->time += 1000 << std::min(world->looks++, kDoublings);
}

Nanoseconds wallClock() { return world->wallStart + world->time + world->wallShift; }
void shiftWallClock(Nanoseconds by) { world->wallShift = by; }
std::uint64_t draw(std::uint64_t bound) { return next() % bound; }
std::uint64_t switches() { return world->switches; }
std::uint64_t fileCalls(Node node) { return disk().calls(node); }
void killAt(Node node, std::uint64_t at, bool power) { world->kills.push_back({node, at, power}); }
bool isAlive(Node node) { return world->alive[node]; }
void failFiles(Node node, std::uint64_t first, std::uint64_t count, int error) {
  disk().fail(node, first, count, error);
}
void setFolder(Node node, const std::string& folder) { disk().setFolder(node, folder); }

// ---- Threads ----

bool isInside() { return self != nullptr; }
Node currentNode() { return self->node; }
Thread* currentThread() { return self; }

Thread* createThread(void* (*function)(void*), void* argument) {
  return launch(self->node, function, argument);
}

void* joinThread(Thread* thread) {
  while (!thread->hasEnded) waitFor(thread, kNever, "join");
  return thread->result;
}

bool waitFor(const void* address, Nanoseconds deadline, const char* what) {
  Thread& me = *self;
  me.isWaiting = true;
  me.wasWoken = false;
  me.address = address;
  me.deadline = deadline;
  me.what = what;
  switchThreads();
  me.isWaiting = false;
  me.address = nullptr;
  me.files.clear();
  return me.wasWoken;
}

bool waitForFiles(const pollfd* files, std::size_t count, Nanoseconds deadline) {
  self->files.assign(files, files + count);
  waitFor(nullptr, deadline, "files");
  return world->time < deadline;
}

void wakeAll(const void* address) {
  for (const auto& thread : world->threads) {
    if (thread->isWaiting && thread->address == address) thread->wasWoken = true;
  }
}

void wakeOne(const void* address) {
  std::vector<Thread*> waiting;
  for (const auto& thread : world->threads) {
    if (thread->isWaiting && !thread->wasWoken && !thread->isDead && thread->address == address) {
      waiting.push_back(thread.get());
    }
  }
  if (!waiting.empty()) waiting[next() % waiting.size()]->wasWoken = true;
}

void maySwitch(const void* caller) {
  const bool isOurs = caller >= &__executable_start && caller < &etext;
  if (isOurs && self->holds == 0 && next() % 4 == 0) switchThreads();
}

void holdSwitches(int change) { self->holds += change; }
void countLocks(int change) { self->locks += change; }

void killNow(Node node, bool power) {
  kill({node, world->switches, power});
  if (self->isDead) switchThreads();
}

void opened(int file) {
  for (auto& files : world->descriptors) files.erase(file);  // may have been closed with fclose()
  world->descriptors[self->node].insert(file);
}
void closed(int file) {
  for (auto& files : world->descriptors) files.erase(file);
  disk().forget(file);
}

}  // namespace cleave::sim
