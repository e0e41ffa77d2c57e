// What the runtime's two files share.
#pragma once

#include <cstddef>
#include <cstdint>

struct simt_uint3 {
  unsigned x, y, z;
};

// Kernels see the same (simt.h).
struct simt_place {
  simt_uint3 thread_index, block_index, block_size, grid_size;
  unsigned flat;
};

enum : unsigned { simt_order_forward, simt_order_reverse, simt_order_random };
// What simt_run returns; signals' numbers are below.
enum : int { simt_error_text = 1001, simt_error_memory = 1002 };

extern "C" {
extern simt_place simt_here;
void simt_block_barrier(unsigned line, unsigned site);
void simt_warp_barrier(unsigned mask, unsigned line, unsigned site);
uint64_t simt_exchange(unsigned mask, uint64_t value, unsigned source, unsigned line, unsigned site);
unsigned simt_ballot(unsigned mask, int value, unsigned line, unsigned site);
[[noreturn]] void simt_fail(const char* what);
}
