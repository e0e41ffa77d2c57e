// The runtime: executes a kernel on one CPU thread, with a fiber for each thread of a block.
//
// Blocks run one after another. Within a block a thread runs until it waits (a barrier, a warp
// operation) or returns; then the next one runs. The order of threads and of blocks is an argument,
// so that a race shows as a different result. What a GPU leaves undefined is an error here: barriers
// that not all threads reach, warp operations whose lanes do not come, memory faults, and (from
// undefined.cpp) the arithmetic that C++ does not define. An error ends the launch, never the process.
#include "fibers.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#if !defined(SIMT_UCONTEXT)
#define SIMT_OWN_SWITCH 1
#endif
#endif
#if !defined(SIMT_OWN_SWITCH)
#include <ucontext.h>
#endif

namespace {

constexpr size_t kStack = 128 * 1024;  // of a fiber; a page that faults lies below
constexpr size_t kPage = 4096;
constexpr unsigned kWarp = 32;

// ---- switching between fibers ----------------------------------------------------------------

#if defined(SIMT_OWN_SWITCH)
using Context = void*;  // the stack pointer; everything else lies on the stack

// Saves what the System V ABI lets a callee not change, and continues on the other stack.
__attribute__((naked, noinline)) void switch_stack(Context*, Context) {
  asm volatile(
      "pushq %rbp\n\t"
      "pushq %rbx\n\t"
      "pushq %r12\n\t"
      "pushq %r13\n\t"
      "pushq %r14\n\t"
      "pushq %r15\n\t"
      "movq %rsp, (%rdi)\n\t"
      "movq %rsi, %rsp\n\t"
      "popq %r15\n\t"
      "popq %r14\n\t"
      "popq %r13\n\t"
      "popq %r12\n\t"
      "popq %rbx\n\t"
      "popq %rbp\n\t"
      "ret\n\t");
}

void prepare(Context& context, char* stack, void (*start)()) {
  void** top = reinterpret_cast<void**>(stack + kStack - 64);
  *--top = nullptr;  // where `start` would return to; it never does
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; i++) *--top = nullptr;  // the registers that switch_stack pops
  context = top;
}

void change(Context& from, Context& to) { switch_stack(&from, to); }
#else
using Context = ucontext_t;

void prepare(Context& context, char* stack, void (*start)()) {
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, start, 0);
}

void change(Context& from, Context& to) { swapcontext(&from, &to); }
#endif

// ---- the state of a launch -------------------------------------------------------------------

enum class State { ready, at_block_barrier, at_warp_operation, returned };

struct Fiber {
  Context context;
  char* stack = nullptr;
  State state = State::returned;
  unsigned mask = 0;  // of a warp operation
  unsigned line = 0;  // of the text, where the thread waits
  unsigned site = 0;
  uint64_t value = 0;  // what it offers to other lanes
};

struct Launch {
  void (*body)(void**) = nullptr;
  void** arguments = nullptr;
  char* shared_begin = nullptr;
  char* shared_end = nullptr;
  bool with_fibers = false;
  bool random = false;
  std::mt19937 generator;
  std::vector<unsigned> thread_order, block_order;
  sigjmp_buf escape;
  volatile bool running = false;
  char message[512] = "";
  void* volatile fault = nullptr;
};

std::vector<Fiber> fibers;  // kept between launches, for their stacks
Context scheduler;
Launch launch;
std::mutex one_launch;

}  // namespace

extern "C" {
simt_place simt_here;
}

namespace {

unsigned threads() { return launch.thread_order.size(); }

void complain(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(launch.message, sizeof launch.message, format, values);
  va_end(values);
}

[[noreturn]] void escape(int reason) { siglongjmp(launch.escape, reason); }

simt_uint3 unflatten(unsigned number, simt_uint3 size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

void wait(State state, unsigned mask, unsigned line, unsigned site) {
  if (!launch.with_fibers) simt_fail("a barrier in a kernel that was said to have none");
  Fiber& self = fibers[simt_here.flat];
  self.state = state;
  self.mask = mask;
  self.line = line;
  self.site = site;
  change(self.context, scheduler);
}

void fiber_main() {
  launch.body(launch.arguments);
  wait(State::returned, 0, 0, 0);
  abort();  // a fiber that returned is not resumed
}

void stand_at(unsigned thread) {
  simt_here.flat = thread;
  simt_here.thread_index = unflatten(thread, simt_here.block_size);
}

// ---- one block -------------------------------------------------------------------------------

void start_fibers() {
  if (fibers.size() < threads()) fibers.resize(threads());
  for (unsigned t = 0; t < threads(); t++) {
    Fiber& fiber = fibers[t];
    if (!fiber.stack) {
      void* memory = mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) {
        complain("no memory for the stack of a thread");
        escape(simt_error_text);
      }
      mprotect(memory, kPage, PROT_NONE);
      fiber.stack = static_cast<char*>(memory) + kPage;
    }
    prepare(fiber.context, fiber.stack, fiber_main);
    fiber.state = State::ready;
  }
}

const char* where(const Fiber& fiber, char* text, size_t size) {
  switch (fiber.state) {
    case State::returned:
      return "has returned";
    case State::at_block_barrier:
      snprintf(text, size, "waits at the block barrier of line %u", fiber.line);
      return text;
    case State::at_warp_operation:
      snprintf(text, size, "waits at the warp operation of line %u with mask %#x", fiber.line,
               fiber.mask);
      return text;
    default:
      return "runs";
  }
}

// Two threads of the block that do not wait for the same thing.
void complain_about(const char* what, unsigned a, unsigned b) {
  char one[96], other[96];
  const simt_uint3 block = simt_here.block_index;
  complain("%s in block (%u,%u,%u): thread %u %s, thread %u %s", what, block.x, block.y, block.z, a,
           where(fibers[a], one, sizeof one), b, where(fibers[b], other, sizeof other));
}

// The warp operation that the thread waits at may go on when all lanes of its mask wait there.
bool release_warp_operation(unsigned thread) {
  const unsigned first = thread / kWarp * kWarp;
  const Fiber& fiber = fibers[thread];
  for (unsigned lane = 0; lane < kWarp; lane++) {
    if (!(fiber.mask >> lane & 1) || first + lane >= threads()) continue;
    const Fiber& other = fibers[first + lane];
    const bool same = other.state == State::at_warp_operation && other.mask == fiber.mask &&
                      other.site == fiber.site && other.line == fiber.line;
    if (!same) {
      complain_about("a warp operation lacks a lane of its mask", thread, first + lane);
      return false;
    }
  }
  const unsigned mask = fiber.mask;
  for (unsigned lane = 0; lane < kWarp && first + lane < threads(); lane++) {
    if (mask >> lane & 1) fibers[first + lane].state = State::ready;
  }
  return true;
}

// No thread is ready: let those go on that wait for nothing more. False if there are none.
bool release() {
  bool progress = false;
  unsigned waiting = 0;
  for (unsigned t = 0; t < threads(); t++) {
    if (fibers[t].state == State::at_warp_operation) progress |= release_warp_operation(t);
    waiting += fibers[t].state == State::at_block_barrier;
  }
  if (progress) return true;
  if (waiting == 0 || launch.message[0]) return false;
  for (unsigned t = 1; t < threads(); t++) {
    const bool same = fibers[t].state == fibers[0].state && fibers[t].site == fibers[0].site;
    if (!same) {
      complain_about("divergent barrier", 0, t);
      return false;
    }
  }
  for (unsigned t = 0; t < threads(); t++) fibers[t].state = State::ready;
  return true;
}

void run_block_of_fibers() {
  start_fibers();
  for (;;) {
    if (launch.random) {
      std::shuffle(launch.thread_order.begin(), launch.thread_order.end(), launch.generator);
    }
    for (unsigned t : launch.thread_order) {
      if (fibers[t].state != State::ready) continue;
      stand_at(t);
      change(scheduler, fibers[t].context);
    }
    const auto end = fibers.begin() + threads();
    const auto returned = [](const Fiber& f) { return f.state == State::returned; };
    if (std::all_of(fibers.begin(), end, returned)) return;
    launch.message[0] = 0;
    if (!release()) escape(simt_error_text);
    launch.message[0] = 0;
  }
}

void run_block() {
  const size_t shared = launch.shared_end - launch.shared_begin;
  if (shared) memset(launch.shared_begin, 0xFF, shared);
  if (launch.with_fibers) return run_block_of_fibers();
  for (unsigned t : launch.thread_order) {
    stand_at(t);
    launch.body(launch.arguments);
  }
}

// ---- orders, signals, the clock --------------------------------------------------------------

void set_order(std::vector<unsigned>& order, size_t count, unsigned kind) {
  order.resize(count);
  std::iota(order.begin(), order.end(), 0u);
  if (kind == simt_order_reverse) std::reverse(order.begin(), order.end());
  if (kind >= simt_order_random) std::shuffle(order.begin(), order.end(), launch.generator);
}

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGVTALRM};
constexpr int kSignalCount = sizeof kSignals / sizeof *kSignals;

void on_signal(int signal, siginfo_t* information, void*) {
  if (!launch.running) {  // not ours: what would have happened without us
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  launch.fault = information->si_addr;
  escape(signal);
}

const char* explained(int signal) {
  switch (signal) {
    case SIGSEGV:
    case SIGBUS:
      return "memory fault";
    case SIGFPE:
      return "integer division by zero or overflow";
    case SIGVTALRM:
      return "endless loop (the time limit is over)";
    default:
      return "trap";
  }
}

class Signals {
 public:
  Signals() {
    static thread_local char stack[64 * 1024];
    stack_t own{};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < kSignalCount; i++) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~Signals() {
    for (int i = 0; i < kSignalCount; i++) sigaction(kSignals[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  struct sigaction old_[kSignalCount];
  stack_t old_stack_{};
};

// Counts this thread's CPU time, so that a busy machine ends no launch.
class Clock {
 public:
  explicit Clock(unsigned seconds) {
    struct sigevent event {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGVTALRM;
    event._sigev_un._tid = syscall(SYS_gettid);
    made_ = seconds && timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
    struct itimerspec limit {};
    limit.it_value.tv_sec = seconds;
    if (made_) timer_settime(timer_, 0, &limit, nullptr);
  }
  ~Clock() {
    if (made_) timer_delete(timer_);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

// Rounding to nearest and denormals kept (or flushed, as some GPUs do), whatever the process uses.
class Rounding {
 public:
#if defined(__x86_64__)
  explicit Rounding(bool flush) : old_(_mm_getcsr()) { _mm_setcsr(flush ? 0x9fc0 : 0x1f80); }
  ~Rounding() { _mm_setcsr(old_); }

 private:
  unsigned old_;
#else
  explicit Rounding(bool) {}
#endif
};

}  // namespace

// ---- what kernels call -----------------------------------------------------------------------

extern "C" {

void simt_block_barrier(unsigned line, unsigned site) {
  wait(State::at_block_barrier, 0, line, site);
}

void simt_warp_barrier(unsigned mask, unsigned line, unsigned site) {
  if (!(mask >> (simt_here.flat % kWarp) & 1)) simt_fail("a warp operation's mask lacks its own lane");
  wait(State::at_warp_operation, mask, line, site);
}

uint64_t simt_exchange(unsigned mask, uint64_t value, unsigned source, unsigned line,
                       unsigned site) {
  const unsigned self = simt_here.flat;
  if (launch.with_fibers) fibers[self].value = value;
  simt_warp_barrier(mask, line, site);
  const unsigned other = self / kWarp * kWarp + source;
  if (!(mask >> source & 1)) simt_fail("a shuffle reads a lane that its mask does not name");
  if (other >= threads()) simt_fail("a shuffle reads a lane beyond the block");
  const uint64_t read = fibers[other].value;
  simt_warp_barrier(mask, line, site);  // all have read before any offers its next value
  return read;
}

unsigned simt_ballot(unsigned mask, int value, unsigned line, unsigned site) {
  const unsigned first = simt_here.flat / kWarp * kWarp;
  if (launch.with_fibers) fibers[simt_here.flat].value = value != 0;
  simt_warp_barrier(mask, line, site);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < kWarp && first + lane < threads(); lane++) {
    if (mask >> lane & 1) votes |= unsigned(fibers[first + lane].value & 1) << lane;
  }
  simt_warp_barrier(mask, line, site);
  return votes;
}

void simt_fail(const char* what) {
  const simt_uint3 t = simt_here.thread_index, b = simt_here.block_index;
  complain("%s, in thread (%u,%u,%u) of block (%u,%u,%u)", what, t.x, t.y, t.z, b.x, b.y, b.z);
  escape(simt_error_text);
}

// ---- what the host calls ---------------------------------------------------------------------

// `geometry`: the grid's three sizes, then the block's. `order`: forward, reverse, or from two on
// the seed of a random one. Returns 0, or what went wrong; simt_message says more.
int simt_run(void (*body)(void**), void** arguments, const unsigned* geometry, char* shared_begin,
             char* shared_end, int with_fibers, unsigned order, int flush, unsigned seconds) {
  const std::lock_guard<std::mutex> lock(one_launch);
  launch.body = body;
  launch.arguments = arguments;
  launch.shared_begin = shared_begin;
  launch.shared_end = shared_end;
  launch.with_fibers = with_fibers;
  launch.random = order >= simt_order_random;
  launch.generator.seed(order);
  launch.message[0] = 0;
  launch.fault = nullptr;
  simt_here.grid_size = {geometry[0], geometry[1], geometry[2]};
  simt_here.block_size = {geometry[3], geometry[4], geometry[5]};
  set_order(launch.block_order, size_t(geometry[0]) * geometry[1] * geometry[2], order);
  set_order(launch.thread_order, size_t(geometry[3]) * geometry[4] * geometry[5], order);

  const Signals signals;
  const Clock clock(seconds);
  const Rounding rounding(flush);
  const int reason = sigsetjmp(launch.escape, 1);
  if (reason == 0) {
    launch.running = true;
    for (unsigned block : launch.block_order) {
      simt_here.block_index = unflatten(block, simt_here.grid_size);
      run_block();
    }
  }
  launch.running = false;
  if (reason == 0 || reason == simt_error_text) return reason;
  const simt_uint3 t = simt_here.thread_index, b = simt_here.block_index;
  complain("%s in thread (%u,%u,%u) of block (%u,%u,%u)", explained(reason), t.x, t.y, t.z, b.x,
           b.y, b.z);
  return reason == SIGSEGV || reason == SIGBUS ? simt_error_memory : simt_error_text;
}

const char* simt_message() { return launch.message; }

void* simt_fault_address() { return launch.fault; }

}  // extern "C"
