#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace qeff {

namespace {

inline void relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // about 10 ns; yield does nothing on most cores
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// How a member waits: it looks again and again for some 30 us, as long as most waits last; then it looks after offering its
// processor to others, which costs little on a quiet machine and much less than spinning on a busy one; then it sleeps.
constexpr int kSpins = 2000;
constexpr int kYields = 1000;

void wait_while(const std::atomic<uint32_t>& number, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (number.load(std::memory_order_acquire) != old) return;
    relax();
  }
  for (int i = 0; i < kYields; ++i) {
    if (number.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  while (number.load(std::memory_order_acquire) == old) number.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  for (int member = 1; member < num_threads_; ++member) threads_.emplace_back([this, member] { work(member); });
}

ThreadPool::~ThreadPool() {
  is_closing_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(Job job, void* context) {
  job_ = job;
  context_ = context;
  if (num_threads_ > 1) {
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  job(context, 0);
  barrier();  // nobody is still reading job_ or context_
}

void ThreadPool::open_barrier(uint32_t round) {
  round_.store(round + 1, std::memory_order_release);
  round_.notify_all();
}

void ThreadPool::wait_for_barrier(uint32_t round) { wait_while(round_, round); }

void ThreadPool::work(int member) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(epoch_, seen);
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
