// A team of threads that stays, and does one job at a time together.
//
// run() is called by one thread, which takes part as number 0. Within a job the members meet at barrier(). Members
// spin for a short while before they sleep, so that a job a few microseconds after the last one starts at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace qeff {

class ThreadPool {
 public:
  // Throws Error(kResource) where the system has not so many.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  // Calls job(context, member) on every member and returns when all are done. Jobs must not throw. Throws
  // Error(kRequest) in a process that was forked from the one that made the team: threads do not come along.
  using Job = void (*)(void* context, int member);
  void run(Job job, void* context);
  // Every member waits until all have arrived; the last to arrive calls `alone` before the others go on. Only within a
  // job, by all members alike.
  template <typename Alone>
  void barrier(Alone&& alone) {
    if (num_threads_ == 1) return alone();
    const uint32_t round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(num_threads_)) {
      alone();
      arrived_.store(0, std::memory_order_relaxed);
      open_barrier(round);
    } else {
      wait_for_barrier(round);
    }
  }
  void barrier() { barrier([] {}); }

 private:
  void work(int member);
  void close();
  bool is_forked() const;
  void keep_apart();
  void open_barrier(uint32_t round);
  void wait_for_barrier(uint32_t round);

  const int num_threads_;
  const int process_;  // that made the team
  int caller_cpu_ = -1;  // where the caller ran when the others were placed
  Job job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // number of jobs begun; the members wait for it to rise
  alignas(64) std::atomic<uint32_t> arrived_{0};  // members at the barrier
  alignas(64) std::atomic<uint32_t> round_{0};    // barriers passed
  std::atomic<bool> is_closing_{false};
  std::vector<std::thread> threads_;
};

// Cores that do not share their execution units with another, as far as the system tells.
int count_physical_cores();

}  // namespace qeff
