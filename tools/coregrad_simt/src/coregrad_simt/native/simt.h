// What a kernel's translation unit sees of the runtime (fibers.cpp), and how a kernel is called.
//
// No standard header is included: one costs more than compiling a kernel does (0.03 s).
#pragma once

typedef unsigned long simt_word;  // 64 bits: what a lane offers to others

struct simt_uint3 {
  unsigned x, y, z;
};

// Where the thread that runs at this moment stands. The runtime writes it; fibers.cpp has the same.
struct simt_place {
  simt_uint3 thread_index, block_index, block_size, grid_size;
  unsigned flat;  // the thread's number within its block
};

extern "C" {
extern simt_place simt_here;
// Wait for all threads of the block. A site tells one barrier of the text from another.
void simt_block_barrier(unsigned line, unsigned site);
// Wait for the lanes of the warp that `mask` names.
void simt_warp_barrier(unsigned mask, unsigned line, unsigned site);
// Offer `value` to the lanes that `mask` names, and read what lane `source` offers.
simt_word simt_exchange(unsigned mask, simt_word value, unsigned source, unsigned line,
                        unsigned site);
// One bit per lane of the mask: whether it offers a value other than zero.
unsigned simt_ballot(unsigned mask, int value, unsigned line, unsigned site);
// End the launch: the text does what it must not do.
[[noreturn]] void simt_fail(const char* what);
}

static inline unsigned simt_lane() { return simt_here.flat & 31; }

// Shared memory is static memory in a section of its own; the linker knows where that starts.
#define SIMT_SHARED static __attribute__((section("simt_shared")))
extern "C" {
extern char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
}

template <class To, class From>
static inline To simt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are read as a type of another size");
  return __builtin_bit_cast(To, from);
}

// ---- calling a kernel with an array of its arguments' addresses ----------------------------

template <unsigned... I>
struct simt_indices {};
#if defined(__clang__)
template <class T, T... I>
struct simt_counted {
  using type = simt_indices<I...>;
};
template <unsigned N>
using simt_count = typename __make_integer_seq<simt_counted, unsigned, N>::type;
#else
template <unsigned N>
using simt_count = simt_indices<__integer_pack(N)...>;
#endif

// What kind of parameter this is: p a pointer, c one to constants, f a float, i u an integer,
// b a bool, s anything else.
template <class T>
constexpr int simt_kind = T(-1) < T(0) ? 'i' : 'u';
template <class T>
constexpr int simt_kind<T*> = 'p';
template <class T>
constexpr int simt_kind<const T*> = 'c';
template <>
constexpr int simt_kind<bool> = 'b';
template <>
constexpr int simt_kind<float> = 'f';
template <>
constexpr int simt_kind<double> = 'f';

template <class... P, unsigned... I>
static inline void simt_apply(void (*kernel)(P...), void** arguments, simt_indices<I...>) {
  kernel(*static_cast<P*>(arguments[I])...);
}

template <class... P>
static inline void simt_call(void (*kernel)(P...), void** arguments) {
  simt_apply(kernel, arguments, simt_count<sizeof...(P)>{});
}

template <class... P>
static inline int simt_describe(void (*)(P...), int* out) {
  int count = 0;
  ((out[count++] = int(sizeof(P)) | simt_kind<P> << 16), ...);
  return count;
}

// Written below a text for each of its kernels. The host finds the functions by name.
#define SIMT_KERNEL_AS(name, function)                                                         \
  extern "C" void simt_body_##name(void** arguments) { simt_call(&function, arguments); }      \
  extern "C" int simt_parameters_##name(int* out) { return simt_describe(&function, out); }
#define SIMT_KERNEL(name) SIMT_KERNEL_AS(name, name)

#define SIMT_MODULE                                                \
  extern "C" void simt_shared_memory(char** begin, char** end) {   \
    *begin = __start_simt_shared;                                  \
    *end = __stop_simt_shared;                                     \
  }
