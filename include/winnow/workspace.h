// Scratch memory that a caller lends to Winnow's functions, so that a repeated call allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace winnow {

// A stack of 64-byte aligned allocations. Pointers stay valid until the Scope they were made in ends, or reset().
// After the first pass over a workload has sized it, further passes allocate nothing (see system_allocations()).
// Not thread-safe: one Workspace per concurrent caller.
class Workspace {
 public:
  Workspace() : Workspace(0) {}
  explicit Workspace(std::size_t initial_bytes);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Uninitialised memory for `count` objects of trivially destructible type T.
  template <class T>
  T* allocate(std::size_t count) {
    constexpr std::size_t kMost = static_cast<std::size_t>(-1);  // refused by allocate_bytes(), as an overflown product has to be
    return static_cast<T*>(allocate_bytes(count > kMost / sizeof(T) ? kMost : count * sizeof(T)));
  }
  void* allocate_bytes(std::size_t bytes);

  // Gives everything back to the workspace; merges its blocks, so that the next pass finds one that fits.
  // Throws Error while a Scope is open.
  void reset();

  std::size_t used_bytes() const;
  std::size_t peak_bytes() const { return peak_; }
  std::size_t capacity_bytes() const;
  // How often memory was taken from the system so far.
  std::size_t system_allocations() const { return system_allocations_; }

  // Memory allocated inside a Scope is given back when it ends. Scopes nest.
  class Scope {
   public:
    explicit Scope(Workspace& workspace);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    std::size_t block_;
    std::size_t offset_;
  };

 protected:
  // Where blocks come from; `place` is handed to both functions. Memory must be 64-byte aligned.
  struct Source {
    std::byte* (*take)(std::size_t bytes, int place);  // throws Error
    void (*give_back)(std::byte* p, int place);
    int place;
  };
  Workspace(const Source& source, std::size_t initial_bytes);

 private:
  struct Free {
    Source source;
    void operator()(std::byte* p) const { source.give_back(p, source.place); }
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    std::size_t size = 0;
    std::size_t used = 0;
  };
  void add_block(std::size_t bytes);

  Source source_;
  std::vector<Block> blocks_;
  std::size_t current_ = 0;
  std::size_t peak_ = 0;
  std::size_t system_allocations_ = 0;
  int open_scopes_ = 0;
};

}  // namespace winnow
