// Functions of the C library that wait, return the time, or use files and sockets. They replace the
// C library's functions in this process; see world.h. TCP over loopback is replaced by a Unix
// socket of the kernel, which delivers immediately; network.cpp adds the delays and faults of a
// real link.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>

#include "tests/simulation/real.h"
#include "tests/simulation/world.h"

namespace sim = cleave::sim;

// The C library's own function. It is not an initialised static variable, because its
// initialisation would call __cxa_guard_acquire, which this file also replaces.
#define REAL_VERSION(name, version)               \
  static decltype(&::name) real_##name = nullptr; \
  if (real_##name == nullptr)                     \
  real_##name = reinterpret_cast<decltype(&::name)>(::dlvsym(RTLD_NEXT, #name, version))
#define REAL(name)                                \
  static decltype(&::name) real_##name = nullptr; \
  if (real_##name == nullptr)                     \
  real_##name = reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))

namespace {

sim::Nanoseconds nanoseconds(const timespec& time) {
  return time.tv_sec * sim::kSecond + time.tv_nsec;
}

timespec timespecOf(sim::Nanoseconds time) {
  return {static_cast<time_t>(time / sim::kSecond), static_cast<long>(time % sim::kSecond)};
}

// Converts a deadline to the world's time.
sim::Nanoseconds deadlineOf(clockid_t clock, const timespec& time) {
  return clock == CLOCK_REALTIME ? nanoseconds(time) - sim::wallClock() + sim::now()
                                 : nanoseconds(time);
}

sim::Nanoseconds deadlineOf(int milliseconds) {
  return milliseconds < 0 ? sim::kNever : sim::now() + milliseconds * (sim::kSecond / 1000);
}

}  // namespace

extern "C" {

// ---- Threads ----

// The world's threads by pthread_t. Real threads also have handles of this type.
static std::map<pthread_t, sim::Thread*>& threads() {
  static auto* const all = new std::map<pthread_t, sim::Thread*>;
  return *all;
}

int pthread_create(pthread_t* handle, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  if (sim::isInside()) {
    // The handle is any unique number, because programs use it only to join and to detach.
    sim::Thread* const thread = sim::createThread(function, argument);
    *handle = reinterpret_cast<pthread_t>(thread);
    threads()[*handle] = thread;
    sim::maySwitch(__builtin_return_address(0));
    return 0;
  }
  REAL(pthread_create);
  return real_pthread_create(handle, attributes, function, argument);
}

int pthread_join(pthread_t handle, void** result) {
  if (sim::isInside() && threads().contains(handle)) {
    void* const returned = sim::joinThread(threads()[handle]);
    if (result != nullptr) *result = returned;
    return 0;
  }
  REAL(pthread_join);
  return real_pthread_join(handle, result);
}

int pthread_detach(pthread_t handle) noexcept {
  if (sim::isInside() && threads().contains(handle)) return 0;
  REAL(pthread_detach);
  return real_pthread_detach(handle);
}

pthread_t pthread_self() noexcept {
  REAL(pthread_self);
  return sim::isInside() ? reinterpret_cast<pthread_t>(sim::currentThread()) : real_pthread_self();
}

int pthread_setname_np(pthread_t, const char*) noexcept { return 0; }

int sched_yield() noexcept {
  if (sim::isInside()) sim::maySwitch(__builtin_return_address(0));
  REAL(sched_yield);
  return sim::isInside() ? 0 : real_sched_yield();
}

// ---- Mutexes ----

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_lock);
  if (!sim::isInside()) return real_pthread_mutex_lock(mutex);
  REAL(pthread_mutex_trylock);
  int error = 0;
  while ((error = real_pthread_mutex_trylock(mutex)) == EBUSY)
    sim::waitFor(mutex, sim::kNever, "mutex");
  if (error == 0) sim::countLocks(1);
  return error;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_trylock);
  const int error = real_pthread_mutex_trylock(mutex);
  if (sim::isInside() && error == 0) sim::countLocks(1);
  return error;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  REAL(pthread_mutex_unlock);
  const int error = real_pthread_mutex_unlock(mutex);
  if (sim::isInside()) {
    sim::countLocks(-1);
    sim::wakeAll(mutex);
    sim::maySwitch(__builtin_return_address(0));
  }
  return error;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  REAL(pthread_rwlock_rdlock);
  if (!sim::isInside()) return real_pthread_rwlock_rdlock(lock);
  int error = 0;
  while ((error = ::pthread_rwlock_tryrdlock(lock)) == EBUSY)
    sim::waitFor(lock, sim::kNever, "rwlock");
  if (error == 0) sim::countLocks(1);
  return error;
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  REAL(pthread_rwlock_wrlock);
  if (!sim::isInside()) return real_pthread_rwlock_wrlock(lock);
  int error = 0;
  while ((error = ::pthread_rwlock_trywrlock(lock)) == EBUSY)
    sim::waitFor(lock, sim::kNever, "rwlock");
  if (error == 0) sim::countLocks(1);
  return error;
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  REAL(pthread_rwlock_unlock);
  const int error = real_pthread_rwlock_unlock(lock);
  if (sim::isInside()) {
    sim::countLocks(-1);
    sim::wakeAll(lock);
  }
  return error;
}

// Switches are disabled during an initialisation: other threads would block in the real
// pthread_once, which the world cannot observe.
int pthread_once(pthread_once_t* once, void (*function)()) {
  REAL(pthread_once);
  const bool inside = sim::isInside();
  if (inside) sim::holdSwitches(1);
  const int error = real_pthread_once(once, function);
  if (inside) sim::holdSwitches(-1);
  return error;
}

int __cxa_guard_acquire(long long* guard) {
  using Function = int (*)(long long*);
  static Function acquire = nullptr;
  if (acquire == nullptr)
    acquire = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "__cxa_guard_acquire"));
  const int isOurs = acquire(guard);
  if (isOurs != 0 && sim::isInside()) sim::holdSwitches(1);
  return isOurs;
}

void __cxa_guard_release(long long* guard) {
  using Function = void (*)(long long*);
  static Function release = nullptr;
  if (release == nullptr)
    release = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "__cxa_guard_release"));
  release(guard);
  if (sim::isInside()) sim::holdSwitches(-1);
}

void __cxa_guard_abort(long long* guard) {
  using Function = void (*)(long long*);
  static Function abort = nullptr;
  if (abort == nullptr) abort = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "__cxa_guard_abort"));
  abort(guard);
  if (sim::isInside()) sim::holdSwitches(-1);
}

// ---- Condition variables and futexes ----

static int waitForCondition(pthread_cond_t* condition, pthread_mutex_t* mutex,
                            sim::Nanoseconds deadline) {
  REAL(pthread_mutex_unlock);
  real_pthread_mutex_unlock(mutex);
  sim::countLocks(-1);
  sim::wakeAll(mutex);
  const bool woken = sim::waitFor(condition, deadline, "condition");
  ::pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (sim::isInside()) return waitForCondition(condition, mutex, sim::kNever);
  REAL_VERSION(pthread_cond_wait, "GLIBC_2.3.2");
  return real_pthread_cond_wait(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* time) {
  if (sim::isInside()) return waitForCondition(condition, mutex, deadlineOf(CLOCK_REALTIME, *time));
  REAL_VERSION(pthread_cond_timedwait, "GLIBC_2.3.2");
  return real_pthread_cond_timedwait(condition, mutex, time);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* time) {
  if (sim::isInside()) return waitForCondition(condition, mutex, deadlineOf(clock, *time));
  REAL(pthread_cond_clockwait);
  return real_pthread_cond_clockwait(condition, mutex, clock, time);
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (sim::isInside()) {
    sim::wakeOne(condition);
    sim::maySwitch(__builtin_return_address(0));
    return 0;
  }
  REAL_VERSION(pthread_cond_signal, "GLIBC_2.3.2");
  return real_pthread_cond_signal(condition);
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (sim::isInside()) {
    sim::wakeAll(condition);
    sim::maySwitch(__builtin_return_address(0));
    return 0;
  }
  REAL_VERSION(pthread_cond_broadcast, "GLIBC_2.3.2");
  return real_pthread_cond_broadcast(condition);
}

int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  if (sim::isInside()) return 0;  // nothing to do, because no thread waits on it
  REAL_VERSION(pthread_cond_destroy, "GLIBC_2.3.2");
  return real_pthread_cond_destroy(condition);
}

static long futexInWorld(std::uint32_t* word, int operation, std::uint32_t value,
                         const timespec* time, const void* caller) {
  const int command = operation & FUTEX_CMD_MASK;
  if (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET) {
    sim::wakeAll(word);
    sim::maySwitch(caller);
    return 1;
  }
  if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET) {
    errno = ENOSYS;
    return -1;
  }
  if (__atomic_load_n(word, __ATOMIC_SEQ_CST) != value) {
    errno = EAGAIN;
    return -1;
  }
  sim::Nanoseconds deadline = sim::kNever;
  if (time != nullptr) {
    deadline =
        command == FUTEX_WAIT
            ? sim::now() + nanoseconds(*time)
            : deadlineOf((operation & FUTEX_CLOCK_REALTIME) != 0 ? CLOCK_REALTIME : CLOCK_MONOTONIC,
                         *time);
  }
  if (sim::waitFor(word, deadline, "futex")) return 0;
  errno = ETIMEDOUT;
  return -1;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  std::array<long, 6> a{};
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && sim::isInside()) {
    return futexInWorld(reinterpret_cast<std::uint32_t*>(a[0]), static_cast<int>(a[1]),
                        static_cast<std::uint32_t>(a[2]), reinterpret_cast<const timespec*>(a[3]),
                        __builtin_return_address(0));
  }
  return sim::real::call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// ---- Randomness ----

// Used by std::random_device, because the processor's random numbers would make each run different.
unsigned _ZNSt13random_device9_M_getvalEv(void* device) {
  using Function = unsigned (*)(void*);
  static Function get = nullptr;
  if (get == nullptr) {
    get = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "_ZNSt13random_device9_M_getvalEv"));
  }
  return sim::isInside() ? static_cast<unsigned>(sim::draw(std::uint64_t{1} << 32)) : get(device);
}

// ---- Time ----

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (sim::isInside()) {
    sim::lookAtClock();
    const bool isWall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    *time = timespecOf(isWall ? sim::wallClock() : sim::now());
    return 0;
  }
  REAL(clock_gettime);
  return real_clock_gettime(clock, time);
}

int gettimeofday(timeval* time, void* zone) noexcept {
  if (sim::isInside()) {
    *time = {static_cast<time_t>(sim::wallClock() / sim::kSecond),
             static_cast<suseconds_t>(sim::wallClock() % sim::kSecond / 1000)};
    return 0;
  }
  REAL(gettimeofday);
  return real_gettimeofday(time, zone);
}

time_t time(time_t* time) noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  if (time != nullptr) *time = now.tv_sec;
  return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (sim::isInside()) {
    const sim::Nanoseconds deadline =
        (flags & TIMER_ABSTIME) != 0 ? deadlineOf(clock, *time) : sim::now() + nanoseconds(*time);
    sim::waitFor(nullptr, deadline, "sleep");
    return 0;
  }
  REAL(clock_nanosleep);
  return real_clock_nanosleep(clock, flags, time, left);
}

int nanosleep(const timespec* time, timespec* left) {
  if (sim::isInside()) return ::clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
  REAL(nanosleep);
  return real_nanosleep(time, left);
}

// ---- Readiness ----

int epoll_wait(int file, epoll_event* events, int count, int milliseconds) {
  REAL(epoll_wait);
  if (!sim::isInside()) return real_epoll_wait(file, events, count, milliseconds);
  const sim::Nanoseconds deadline = deadlineOf(milliseconds);
  for (;;) {
    const int ready = real_epoll_wait(file, events, count, 0);
    if (ready != 0 || milliseconds == 0) return ready;
    const pollfd each{file, POLLIN, 0};
    if (!sim::waitForFiles(&each, 1, deadline)) return 0;
  }
}

int poll(pollfd* files, nfds_t count, int milliseconds) {
  if (!sim::isInside()) return sim::real::poll(files, count, milliseconds);
  const sim::Nanoseconds deadline = deadlineOf(milliseconds);
  for (;;) {
    const int ready = sim::real::poll(files, count, 0);
    if (ready != 0 || milliseconds == 0) return ready;
    if (!sim::waitForFiles(files, count, deadline)) return 0;
  }
}

// Fails, so that Asio uses the timeout of epoll_wait() instead.
int timerfd_create(int clock, int flags) noexcept {
  REAL(timerfd_create);
  if (!sim::isInside()) return real_timerfd_create(clock, flags);
  errno = ENOSYS;
  return -1;
}

// ---- Descriptors ----

// Returns whether the call must fail; if so, sets errno.
static bool fails(int error) {
  if (error != 0) errno = error;
  return error != 0;
}

static int own(int file) {
  if (file >= 0 && sim::isInside()) sim::opened(file);
  return file;
}

int epoll_create1(int flags) noexcept {
  REAL(epoll_create1);
  return own(real_epoll_create1(flags));
}

int eventfd(unsigned count, int flags) noexcept {
  REAL(eventfd);
  return own(real_eventfd(count, flags));
}

int pipe2(int files[2], int flags) noexcept {
  REAL(pipe2);
  const int error = real_pipe2(files, flags);
  if (error == 0) own(files[0]), own(files[1]);
  return error;
}

// Called for the pipe in which Asio reports signals. All nodes share it, so it belongs to none.
int pipe(int files[2]) noexcept {
  REAL(pipe);
  return real_pipe(files);
}

static int openFile(int folder, const char* path, int flags, mode_t mode) {
  REAL(openat);
  if (!sim::isInside()) return real_openat(folder, path, flags, mode);
  const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;
  if (changes && fails(sim::beforeChange(path))) return -1;
  const bool isNew = changes && ::access(path, F_OK) != 0;
  const int file = own(real_openat(folder, path, flags, mode));
  if (file >= 0) sim::openedFile(file, path, isNew);
  return file;
}

static mode_t modeOf(int flags, va_list& list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = modeOf(flags, list);
  va_end(list);
  return openFile(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = modeOf(flags, list);
  va_end(list);
  return openFile(AT_FDCWD, path, flags, mode);
}

int close(int file) {
  if (sim::isInside()) sim::closed(file);
  return sim::real::close(file);
}

// ---- Files ----

static bool mayWrite(int file) {
  if (fails(sim::beforeWrite(file))) return false;
  sim::wrote(file);
  return true;
}

ssize_t write(int file, const void* data, std::size_t count) {
  REAL(write);
  if (sim::isInside() && !mayWrite(file)) return -1;
  return real_write(file, data, count);
}

ssize_t writev(int file, const iovec* data, int count) {
  REAL(writev);
  if (sim::isInside() && !mayWrite(file)) return -1;
  return real_writev(file, data, count);
}

int ftruncate(int file, off_t bytes) noexcept {
  REAL(ftruncate);
  if (sim::isInside() && fails(sim::beforeWrite(file))) return -1;
  return real_ftruncate(file, bytes);
}

int mkdir(const char* path, mode_t mode) noexcept {
  REAL(mkdir);
  if (sim::isInside() && fails(sim::beforeChange(path))) return -1;
  return real_mkdir(path, mode);
}

static int synchronise(int file, const void* caller) {
  if (fails(sim::beforeSync(file))) return -1;
  sim::synced(file);
  sim::maySwitch(caller);
  return 0;
}

int fsync(int file) {
  REAL(fsync);
  return sim::isInside() ? synchronise(file, __builtin_return_address(0)) : real_fsync(file);
}

int fdatasync(int file) {
  REAL(fdatasync);
  return sim::isInside() ? synchronise(file, __builtin_return_address(0)) : real_fdatasync(file);
}

int rename(const char* from, const char* to) noexcept {
  if (sim::isInside()) {
    if (fails(sim::beforeChange(to))) return -1;
    sim::renames(from, to);
  }
  return sim::real::rename(from, to);
}

static bool mayRemove(const char* path) {
  if (fails(sim::beforeChange(path))) return false;
  sim::removes(path);
  return true;
}

int unlink(const char* path) noexcept {
  if (sim::isInside() && !mayRemove(path)) return -1;
  return sim::real::unlink(path);
}

int remove(const char* path) noexcept {
  REAL(remove);
  if (sim::isInside() && !mayRemove(path)) return -1;
  return real_remove(path);
}

// ---- Sockets ----

struct TcpSocket {
  std::uint16_t port = 0, peer = 0;
};
static std::map<int, TcpSocket>& sockets() {
  static auto* const all = new std::map<int, TcpSocket>;
  return *all;
}
static bool isTcp(int file) { return sim::isInside() && sockets().contains(file); }

static void fill(std::uint16_t port, sockaddr* address, socklen_t* length) {
  if (address == nullptr) return;
  sockaddr_in inet{};
  inet.sin_family = AF_INET;
  inet.sin_port = htons(port);
  inet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(address, &inet, std::min<std::size_t>(*length, sizeof inet));
  *length = sizeof inet;
}

// An abstract address that only this process uses.
static socklen_t unixAddress(std::uint16_t port, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                                   "cleave-simulation-%d-%u", ::getpid(), port);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
}

int socket(int domain, int type, int protocol) noexcept {
  REAL(socket);
  const bool isInet = domain == AF_INET && (type & 0xf) == SOCK_STREAM;
  if (!sim::isInside() || !isInet) return own(real_socket(domain, type, protocol));
  const int file = own(real_socket(AF_UNIX, type, 0));
  if (file >= 0) sockets()[file] = {};
  return file;
}

int bind(int file, const sockaddr* address, socklen_t length) noexcept {
  REAL(bind);
  if (!isTcp(file)) return real_bind(file, address, length);
  const std::uint16_t port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  sockets()[file].port = port;
  sockaddr_un name{};
  const socklen_t size = unixAddress(port, name);
  return real_bind(file, reinterpret_cast<sockaddr*>(&name), size);
}

int connect(int file, const sockaddr* address, socklen_t length) {
  REAL(connect);
  if (!isTcp(file)) return real_connect(file, address, length);
  TcpSocket& tcp = sockets()[file];
  tcp.peer = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  tcp.port = static_cast<std::uint16_t>(40000 + sim::draw(20000));
  sockaddr_un name{};
  const socklen_t size = unixAddress(tcp.peer, name);
  return real_connect(file, reinterpret_cast<sockaddr*>(&name), size);
}

static int accepted(int listener, int file, sockaddr* address, socklen_t* length) {
  if (file < 0) return file;
  own(file);
  if (!isTcp(listener)) return file;
  sockets()[file] = {sockets()[listener].port,
                     static_cast<std::uint16_t>(40000 + sim::draw(20000))};
  fill(sockets()[file].peer, address, length);
  return file;
}

int accept4(int file, sockaddr* address, socklen_t* length, int flags) {
  REAL(accept4);
  if (!isTcp(file)) return own(real_accept4(file, address, length, flags));
  return accepted(file, real_accept4(file, nullptr, nullptr, flags), address, length);
}

int accept(int file, sockaddr* address, socklen_t* length) {
  return ::accept4(file, address, length, 0);
}

int getsockname(int file, sockaddr* address, socklen_t* length) noexcept {
  REAL(getsockname);
  if (!isTcp(file)) return real_getsockname(file, address, length);
  fill(sockets()[file].port, address, length);
  return 0;
}

int getpeername(int file, sockaddr* address, socklen_t* length) noexcept {
  REAL(getpeername);
  if (!isTcp(file)) return real_getpeername(file, address, length);
  fill(sockets()[file].peer, address, length);
  return 0;
}

int setsockopt(int file, int level, int name, const void* value, socklen_t length) noexcept {
  REAL(setsockopt);
  return isTcp(file) ? 0 : real_setsockopt(file, level, name, value, length);
}

int getsockopt(int file, int level, int name, void* value, socklen_t* length) noexcept {
  REAL(getsockopt);
  if (!isTcp(file) || level == SOL_SOCKET) return real_getsockopt(file, level, name, value, length);
  errno = ENOPROTOOPT;
  return -1;
}

}  // extern "C"

// ---- For world.cpp and disk.cpp ----

namespace cleave::sim::real {

long call(long number, long a, long b, long c, long d, long e, long f) {
  using Function = long (*)(long, ...);
  static Function function = nullptr;
  if (function == nullptr) function = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "syscall"));
  return function(number, a, b, c, d, e, f);
}

int poll(pollfd* files, std::size_t count, int milliseconds) {
  REAL(poll);
  return real_poll(files, count, milliseconds);
}

int close(int file) {
  REAL(close);
  sockets().erase(file);
  return real_close(file);
}

int createThread(pthread_t* thread, void* (*function)(void*), void* argument) {
  REAL(pthread_create);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  const int error = real_pthread_create(thread, &attributes, function, argument);
  ::pthread_attr_destroy(&attributes);
  return error;
}

int rename(const char* from, const char* to) {
  REAL(rename);
  return real_rename(from, to);
}

int unlink(const char* path) {
  REAL(unlink);
  return real_unlink(path);
}

}  // namespace cleave::sim::real
