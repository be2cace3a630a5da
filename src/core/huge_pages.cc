#include "core/huge_pages.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace winnow {

void prefer_huge_pages([[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace winnow
