/* Counts what malloc hands out, as an independent judge of the memory meter.
 *
 * Loaded with LD_PRELOAD. `hook_reset` starts a new high-water mark at the present sum and returns that sum;
 * `hook_peak` returns the mark. Sizes are malloc_usable_size, so what malloc rounds up counts too. mmap that a
 * program does by itself is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic long long current, peak;

static void *taken(void *block) {
  if (block) {
    long long now = atomic_fetch_add(&current, (long long)malloc_usable_size(block)) + (long long)malloc_usable_size(block);
    long long seen = atomic_load(&peak);
    while (now > seen && !atomic_compare_exchange_weak(&peak, &seen, now)) {
    }
  }
  return block;
}

static void given_back(void *block) {
  if (block) atomic_fetch_sub(&current, (long long)malloc_usable_size(block));
}

void *malloc(size_t size) { return taken(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }
void free(void *block) {
  given_back(block);
  __libc_free(block);
}
void *realloc(void *block, size_t size) {
  long long before = block ? (long long)malloc_usable_size(block) : 0;
  void *grown = __libc_realloc(block, size);
  if (grown || size == 0) {
    atomic_fetch_sub(&current, before);
    taken(grown);
  }
  return grown;
}
void *memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }
int posix_memalign(void **block, size_t alignment, size_t size) {
  void *made = taken(__libc_memalign(alignment, size));
  if (!made) return ENOMEM;
  *block = made;
  return 0;
}

long long hook_reset(void) {
  long long now = atomic_load(&current);
  atomic_store(&peak, now);
  return now;
}
long long hook_peak(void) { return atomic_load(&peak); }
