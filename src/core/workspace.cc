#include "winnow/workspace.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "core/huge_pages.h"
#include "winnow/error.h"

namespace winnow {

namespace {
constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

std::size_t align_up(std::size_t bytes, std::size_t alignment) {
  const std::size_t aligned = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (aligned < bytes) throw Error("workspace", "size overflow: " + std::to_string(bytes) + " bytes");
  return aligned;
}

std::byte* take(std::size_t bytes, int) {
  void* const block = std::aligned_alloc(kHugePage, bytes);
  if (block == nullptr) throw Error("workspace", "out of memory: asked the system for " + std::to_string(bytes) + " bytes");
  prefer_huge_pages(block, bytes);
  return static_cast<std::byte*>(block);
}
void give_back(std::byte* p, int) { std::free(p); }
}  // namespace

Workspace::Workspace(std::size_t initial_bytes) : Workspace(Source{take, give_back, 0}, initial_bytes) {}

Workspace::Workspace(const Source& source, std::size_t initial_bytes) : source_(source) {
  if (initial_bytes > 0) add_block(initial_bytes);
}

void Workspace::add_block(std::size_t bytes) {
  const std::size_t size = align_up(bytes, kHugePage);  // packed keys and values of one head are more 4 KB pages than a TLB holds
  blocks_.push_back(Block{std::unique_ptr<std::byte[], Free>(source_.take(size, source_.place), Free{source_}), size, 0});
  ++system_allocations_;
}

void* Workspace::allocate_bytes(std::size_t bytes) {
  const std::size_t need = align_up(bytes, kAlignment);
  while (current_ < blocks_.size() && blocks_[current_].size - blocks_[current_].used < need) ++current_;
  if (current_ == blocks_.size()) add_block(std::max(need, capacity_bytes() / 2));
  Block& block = blocks_[current_];
  void* p = block.memory.get() + block.used;
  block.used += need;
  peak_ = std::max(peak_, used_bytes());
  return p;
}

void Workspace::reset() {
  if (open_scopes_ != 0) throw Error("workspace", "reset() inside an open scope");
  if (blocks_.size() > 1) {
    const std::size_t total = capacity_bytes();
    blocks_.clear();
    add_block(total);
  }
  for (Block& block : blocks_) block.used = 0;
  current_ = 0;
}

std::size_t Workspace::used_bytes() const {
  std::size_t used = 0;
  for (const Block& block : blocks_) used += block.used;
  return used;
}

std::size_t Workspace::capacity_bytes() const {
  std::size_t size = 0;
  for (const Block& block : blocks_) size += block.size;
  return size;
}

Workspace::Scope::Scope(Workspace& workspace)
    : workspace_(workspace),
      block_(workspace.current_),
      offset_(workspace.current_ < workspace.blocks_.size() ? workspace.blocks_[workspace.current_].used : 0) {
  ++workspace_.open_scopes_;
}

Workspace::Scope::~Scope() {
  --workspace_.open_scopes_;
  for (std::size_t b = block_ + 1; b < workspace_.blocks_.size(); ++b) workspace_.blocks_[b].used = 0;
  if (block_ < workspace_.blocks_.size()) workspace_.blocks_[block_].used = offset_;
  workspace_.current_ = block_;
}

}  // namespace winnow
