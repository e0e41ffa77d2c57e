// What g++ calls where a text does what C++ does not define (-fsanitize=..., no recovery).
//
// Its own library for this prints and aborts; ours ends the launch and says line and column.
#include <cstdio>

#include "fibers.h"

namespace {

// The start of each record that g++ passes. Of a float's conversion, too (GCC 6 and later).
struct Source {
  const char* file;
  uint32_t line, column;
};

[[noreturn]] void fail(const void* record, const char* what) {
  const Source* source = static_cast<const Source*>(record);
  static char text[160];
  snprintf(text, sizeof text, "line %u, column %u: %s", source->line, source->column, what);
  simt_fail(text);
}

}  // namespace

extern "C" {

void __ubsan_handle_out_of_bounds_abort(void* record, uint64_t) {
  fail(record, "index outside an array");
}

void __ubsan_handle_shift_out_of_bounds_abort(void* record, uint64_t, uint64_t) {
  fail(record, "shift by a negative count or by too much");
}

void __ubsan_handle_divrem_overflow_abort(void* record, uint64_t, uint64_t) {
  fail(record, "integer division by zero or overflow");
}

void __ubsan_handle_add_overflow_abort(void* record, uint64_t, uint64_t) {
  fail(record, "signed overflow of a sum");
}

void __ubsan_handle_sub_overflow_abort(void* record, uint64_t, uint64_t) {
  fail(record, "signed overflow of a difference");
}

void __ubsan_handle_mul_overflow_abort(void* record, uint64_t, uint64_t) {
  fail(record, "signed overflow of a product");
}

void __ubsan_handle_negate_overflow_abort(void* record, uint64_t) {
  fail(record, "signed overflow of a negation");
}

void __ubsan_handle_float_cast_overflow_abort(void* record, uint64_t) {
  fail(record, "conversion of a float that the integer cannot hold");
}

void __ubsan_handle_type_mismatch_v1_abort(void* record, uint64_t) {
  fail(record, "access through a null or misaligned pointer");
}

void __ubsan_handle_builtin_unreachable(void* record) {
  fail(record, "the end of a function that returns something");
}

void __ubsan_handle_missing_return(void* record) {
  fail(record, "the end of a function that returns something");
}

void __ubsan_handle_load_invalid_value_abort(void* record, uint64_t) {
  fail(record, "a bool that is neither 0 nor 1");
}

}  // extern "C"
