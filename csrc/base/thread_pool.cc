#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"

namespace qeff {

namespace {

inline void relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // about 10 ns; yield does nothing on most cores
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until the number is no longer `old`. Most waits are short, so it looks again and again for some 30 us; after
// that it offers the processor to others between two looks. It sleeps only after `num_yields` of them: within a job
// members must stay runnable, since a system that sees them take turns leaves them on one processor.
constexpr int kSpins = 2000;

bool changes_soon(const std::atomic<uint32_t>& number, uint32_t old, int num_yields) {
  for (int i = 0; i < kSpins; ++i) {
    if (number.load(std::memory_order_acquire) != old) return true;
    relax();
  }
  for (int i = 0; i < num_yields; ++i) {
    if (number.load(std::memory_order_acquire) != old) return true;
    sched_yield();
  }
  return false;
}

constexpr int kYieldsInJob = 1 << 20;      // a second or so: somebody was stopped
constexpr int kYieldsBetweenJobs = 1 << 12;  // a few milliseconds

void wait_while(const std::atomic<uint32_t>& number, uint32_t old, int num_yields) {
  while (!changes_soon(number, old, num_yields)) number.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)), process_(getpid()) {
  threads_.reserve(static_cast<size_t>(num_threads_));
  try {
    for (int member = 1; member < num_threads_; ++member) threads_.emplace_back([this, member] { work(member); });
  } catch (const std::exception&) {
    const std::string count = std::to_string(threads_.size() + 1);
    close();
    throw Error(ErrorCode::kResource, "the system gives no more than " + count + " threads");
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::close() {
  if (is_forked()) {  // there is nobody to wait for
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  is_closing_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadPool::is_forked() const { return getpid() != process_; }

void ThreadPool::run(Job job, void* context) {
  if (num_threads_ > 1 && is_forked())
    throw Error(ErrorCode::kRequest, "a session cannot be used in a process that was forked after it was opened");
  job_ = job;
  context_ = context;
  if (num_threads_ > 1) {
    keep_apart();
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  job(context, 0);
  barrier();  // nobody is still reading job_ or context_
}

// Some systems leave two threads on one processor for as long as they take turns. So the members other than the caller
// are kept off the processor that the caller runs on, and each has one of its own when there are just enough. Costs a
// look at a number unless the caller has moved.
void ThreadPool::keep_apart() {
#if defined(__linux__)
  const int cpu = sched_getcpu();
  if (cpu < 0 || cpu == caller_cpu_) return;
  caller_cpu_ = cpu;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < num_threads_) return;
  const bool has_one_each = CPU_COUNT(&allowed) == num_threads_;
  CPU_CLR(cpu, &allowed);
  int next = 0;
  for (std::thread& thread : threads_) {
    cpu_set_t mine = allowed;
    if (has_one_each) {
      while (!CPU_ISSET(next, &allowed)) ++next;
      CPU_ZERO(&mine);
      CPU_SET(next++, &mine);
    }
    // Where it is refused the thread stays where it is, which is right, only slower.
    pthread_setaffinity_np(thread.native_handle(), sizeof mine, &mine);
  }
#endif
}

void ThreadPool::open_barrier(uint32_t round) {
  round_.store(round + 1, std::memory_order_release);
  round_.notify_all();
}

void ThreadPool::wait_for_barrier(uint32_t round) { wait_while(round_, round, kYieldsInJob); }

void ThreadPool::work(int member) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(epoch_, seen, kYieldsBetweenJobs);
    if (is_closing_.load(std::memory_order_relaxed)) return;
    job_(context_, member);
    barrier();
  }
}

int count_physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::max(1u, std::thread::hardware_concurrency());
  std::set<std::pair<std::string, std::string>> cores;
  int num_unknown = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string package, core;
    std::ifstream(folder + "physical_package_id") >> package;
    std::ifstream(folder + "core_id") >> core;
    if (core.empty()) {
      ++num_unknown;
    } else {
      cores.emplace(package, core);
    }
  }
  return std::max(1, static_cast<int>(cores.size()) + num_unknown);
}

}  // namespace qeff
