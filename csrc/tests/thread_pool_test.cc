// The thread pool: every member does every job once, barriers keep phases apart, and a team can be closed at any
// moment. Run under the thread sanitizer by `make sanitize`, which is why plain variables are shared where barriers
// allow it.
#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace qeff {
namespace {

int num_failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++num_failures;
}

// Members write a number each, meet, and read all the others'. No atomics: the barrier alone orders them.
struct Relay {
  ThreadPool* pool;
  std::vector<int64_t> numbers;  // by member
  int64_t total = 0;             // written by the last to arrive, alone
  std::atomic<int> num_wrong{0};
  int num_rounds;

  void run(int member) {
    for (int round = 0; round < num_rounds; ++round) {
      numbers[static_cast<size_t>(member)] = round * (member + 1);
      pool->barrier([&] {
        total = 0;
        for (const int64_t number : numbers) total += number;
      });
      int64_t seen = 0;
      for (const int64_t number : numbers) seen += number;
      const auto count = static_cast<int64_t>(numbers.size());
      if (total != round * count * (count + 1) / 2 || seen != total) num_wrong.fetch_add(1);
      pool->barrier();  // nobody writes its next number before all have read
    }
  }
};

void test_barriers(int num_threads) {
  ThreadPool pool(num_threads);
  expect(pool.num_threads() == num_threads, "the pool has the threads asked for");
  Relay relay{&pool, std::vector<int64_t>(static_cast<size_t>(num_threads)), 0, {0}, 50};
  for (int job = 0; job < 20; ++job)
    pool.run([](void* self, int member) { static_cast<Relay*>(self)->run(member); }, &relay);
  expect(relay.num_wrong.load() == 0, "barriers with " + std::to_string(num_threads) + " threads");
}

// Every member takes part in every job exactly once, also when jobs follow each other at once or after a sleep.
void test_jobs(int num_threads) {
  ThreadPool pool(num_threads);
  std::vector<int> counts(static_cast<size_t>(num_threads));  // each written by its own member
  const auto count = [](void* context, int member) {
    ++(*static_cast<std::vector<int>*>(context))[static_cast<size_t>(member)];
  };
  for (int job = 0; job < 300; ++job) {
    if (job % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long enough to fall asleep
    pool.run(count, &counts);
  }
  for (const int n : counts) expect(n == 300, "jobs of a member with " + std::to_string(num_threads) + " threads");
}

// A team that is closed while its members still spin, while they sleep, and before any job.
void test_closing(int num_threads) {
  for (int turn = 0; turn < 12; ++turn) {
    ThreadPool pool(num_threads);
    std::atomic<int> done{0};
    for (int job = 0; job < turn % 3; ++job)
      pool.run([](void* n, int) { static_cast<std::atomic<int>*>(n)->fetch_add(1); }, &done);
    if (turn % 4 == 3) std::this_thread::sleep_for(std::chrono::milliseconds(15));
    expect(done.load() == turn % 3 * num_threads, "jobs before closing");
  }
}

// Two teams at once, each called by a thread of its own.
void test_two_teams() {
  std::thread other([] { test_jobs(2); });
  ThreadPool pool(2);
  Relay relay{&pool, std::vector<int64_t>(2), 0, {0}, 200};
  pool.run([](void* self, int member) { static_cast<Relay*>(self)->run(member); }, &relay);
  other.join();
  expect(relay.num_wrong.load() == 0, "barriers beside another team");
}

}  // namespace
}  // namespace qeff

int main() {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    qeff::test_barriers(num_threads);
    qeff::test_jobs(num_threads);
    qeff::test_closing(num_threads);
  }
  qeff::test_two_teams();
  qeff::expect(qeff::ThreadPool(0).num_threads() == 1 && qeff::count_physical_cores() >= 1,
               "there is always one thread");
  std::printf("%d failures\n", qeff::num_failures);
  return qeff::num_failures == 0 ? 0 : 1;
}
