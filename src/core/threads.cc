#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/env.h"
#include "winnow/error.h"
#include "winnow/threads.h"

namespace winnow {

namespace {

thread_local bool inside_parallel_region = false;

class Pool {
 public:
  explicit Pool(int workers) {
    try {
      for (int w = 1; w < workers; ++w) {
        threads_.emplace_back([this, w] { work(w); });
      }
    } catch (const std::exception& error) {  // a limit of the system; those that did start have to end first
      join();
      throw Error("threads",
                  "expected to start " + std::to_string(workers) + " threads, got " + std::to_string(size()) + ": " + error.what());
    }
  }
  ~Pool() { join(); }
  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(std::int64_t n, void (*body)(void*, std::int64_t, int), void* context) {
    {
      const std::lock_guard lock(mutex_);
      n_ = n;
      chunk_ = std::clamp<std::int64_t>(n / (size() * kGrabs), 1, kLargestChunk);
      body_ = body;
      context_ = context;
      next_.store(0, std::memory_order_relaxed);
      error_ = nullptr;
      busy_ = static_cast<int>(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    take(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  // Tasks are taken in chunks, so that short ones do not wait for the shared counter: a worker comes back for more at least
  // kGrabs times, which keeps the wait at the end short.
  static constexpr std::int64_t kGrabs = 64;
  static constexpr std::int64_t kLargestChunk = 16;

  void join() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void take(int worker) {
    inside_parallel_region = true;
    for (;;) {
      const std::int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
      if (begin >= n_) break;
      try {
        for (std::int64_t i = begin; i < std::min(begin + chunk_, n_); ++i) body_(context_, i, worker);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(n_, std::memory_order_relaxed);
      }
    }
    inside_parallel_region = false;
  }
  void work(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
      }
      take(worker);
      bool last = false;
      {
        const std::lock_guard lock(mutex_);
        last = --busy_ == 0;
      }
      if (last) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  std::atomic<std::int64_t> next_{0};
  std::int64_t n_ = 0, chunk_ = 1;
  void (*body_)(void*, std::int64_t, int) = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  int busy_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
};

int resolve(int n) {
  if (n > 0) return n;
  const unsigned cores = std::thread::hardware_concurrency();
  return cores == 0 ? 1 : static_cast<int>(cores);
}

std::mutex pool_mutex;  // held for a whole parallel region: concurrent callers take turns
std::unique_ptr<Pool> pool;

Pool& the_pool() {
  if (!pool) pool = std::make_unique<Pool>(resolve(env::threads()));
  return *pool;
}

}  // namespace

void set_num_threads(int n) {
  if (n < 0 || n > 4096) throw Error("threads", "expected a number in [0,4096], got " + std::to_string(n));
  const std::lock_guard lock(pool_mutex);
  if (!pool || pool->size() != resolve(n)) {
    pool.reset();
    pool = std::make_unique<Pool>(resolve(n));
  }
}

int num_threads() {
  if (inside_parallel_region) return 1;
  const std::lock_guard lock(pool_mutex);
  return the_pool().size();
}

namespace detail {

void parallel_for(std::int64_t n, void (*body)(void*, std::int64_t, int), void* context) {
  if (n <= 0) return;
  if (inside_parallel_region) {
    for (std::int64_t i = 0; i < n; ++i) body(context, i, 0);
    return;
  }
  const std::lock_guard lock(pool_mutex);
  the_pool().run(n, body, context);
}

}  // namespace detail

}  // namespace winnow
