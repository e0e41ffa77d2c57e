"""A stable sort of rows of integers, in LLVM IR: where the smallest elements of each row stand.

Three programs, chosen by size. *Few*: a row is read once, the few smallest so far are kept in
order, and vectors of elements that are all larger are passed over. *Rows*: each row is sorted by
its bytes, the lowest first, in memory of its thread. *Long*: the same for few long rows, whose
blocks are shared out; every step for all blocks is a launch of its own in one run list.

An element on its way is a *word*: for keys of 32 bits and less one i64, key above place; for
keys of 64 bits a pair of i64. The sign bit of signed keys is flipped, so that bytes are in order.
It knows nothing of floats, tensors or threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coregrad.dtypes import DType

DIGITS = 256  # values of the byte that one pass sorts by
LEAST = 16  # elements of a row below which the core's own form, by counting too, is as fast
SHORT = 128  # elements of a row up to which counting is faster
FEW = 64  # smallest elements that are kept in order while a row is read
FEW_WORTH = 640  # comparisons of counting that take as long as keeping one element in order
LONG = 1 << 16  # elements of a row that are worth several threads
LANES = 32  # elements that are passed over at once
WORKERS = 8  # pieces of work per thread that rows are dealt out in
BLOCKS = 2  # blocks per thread of a long row

# ---- what all programs share -------------------------------------------------------------------

FILL = """
; Words of the keys begin to end, with their places.
define internal void @fill(ptr %keys, ptr %words, i64 %begin, i64 %end) {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  %key.p = getelementptr $KEY, ptr %keys, i64 %i
  %key.raw = load $KEY, ptr %key.p
  %key.own = xor $KEY %key.raw, $BIAS
  %key = $WIDEN
  $PACK
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  store $WORD %word, ptr %word.p, align 8
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""

COUNT = """
; Count each value of the byte at a shift.
define internal void @count(ptr %words, ptr %counts, i64 %begin, i64 %end, i64 %shift) {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  call void @llvm.memset.p0.i64(ptr %counts, i8 0, i64 1024, i1 false)
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  %key = load i64, ptr %word.p, align 8
  %down = lshr i64 %key, %shift
  %digit = and i64 %down, 255
  %count.p = getelementptr i32, ptr %counts, i64 %digit
  %count = load i32, ptr %count.p
  %count.next = add i32 %count, 1
  store i32 %count.next, ptr %count.p
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""

MOVE = """
; Put each word where the offset of its byte says, which is then one more.
define internal void @move(ptr %from, ptr %to, ptr %offsets, i64 %begin, i64 %end, i64 %shift) {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  %word.p = getelementptr $WORD, ptr %from, i64 %i
  %word = load $WORD, ptr %word.p, align 8
  %key = $FIRST
  %down = lshr i64 %key, %shift
  %digit = and i64 %down, 255
  %offset.p = getelementptr i32, ptr %offsets, i64 %digit
  %offset = load i32, ptr %offset.p
  %offset.next = add i32 %offset, 1
  store i32 %offset.next, ptr %offset.p
  %place = zext i32 %offset to i64
  %target = getelementptr $WORD, ptr %to, i64 %place
  store $WORD %word, ptr %target, align 8
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""

FINISH = """
; The places of the words begin to end.
define internal void @finish(ptr %words, ptr %out, i64 %begin, i64 %end) {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  %place.p = getelementptr i8, ptr %word.p, i64 $PLACE
  %place = load i32, ptr %place.p
  %out.p = getelementptr i32, ptr %out, i64 %i
  store i32 %place, ptr %out.p
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""

BUFFERS = """
  %out = load ptr, ptr %args
  %keys.p = getelementptr ptr, ptr %args, i64 1
  %keys = load ptr, ptr %keys.p
  %scratch.p = getelementptr ptr, ptr %args, i64 2
  %scratch = load ptr, ptr %scratch.p
"""

# ---- many rows ---------------------------------------------------------------------------------

ROWS = """
; Turn counts into offsets. Whether all words have one byte, so that there is nothing to move.
define internal i1 @sum(ptr %counts) {
entry:
  %d.p = alloca i64
  %total.p = alloca i32
  %same.p = alloca i1
  store i64 0, ptr %d.p
  store i32 0, ptr %total.p
  store i1 false, ptr %same.p
  br label %body
body:
  %d = load i64, ptr %d.p
  %total = load i32, ptr %total.p
  %same = load i1, ptr %same.p
  %count.p = getelementptr i32, ptr %counts, i64 %d
  %count = load i32, ptr %count.p
  store i32 %total, ptr %count.p
  %total.next = add i32 %total, %count
  %all = icmp eq i32 %count, $LENGTH
  %same.next = or i1 %same, %all
  %d.next = add i64 %d, 1
  store i64 %d.next, ptr %d.p
  store i32 %total.next, ptr %total.p
  store i1 %same.next, ptr %same.p
  %more = icmp slt i64 %d.next, 256
  br i1 %more, label %body, label %leave
leave:
  ret i1 %same.next
}

define internal void @row(ptr %keys, ptr %out, ptr %first, ptr %second, ptr %counts) {
entry:
  %from.p = alloca ptr
  %to.p = alloca ptr
  %shift.p = alloca i64
  call void @fill(ptr %keys, ptr %first, i64 0, i64 $LENGTH)
  store ptr %first, ptr %from.p
  store ptr %second, ptr %to.p
  store i64 $LOW, ptr %shift.p
  br label %pass
pass:
  %shift = load i64, ptr %shift.p
  %from = load ptr, ptr %from.p
  %to = load ptr, ptr %to.p
  call void @count(ptr %from, ptr %counts, i64 0, i64 $LENGTH, i64 %shift)
  %same = call i1 @sum(ptr %counts)
  br i1 %same, label %next, label %move
move:
  call void @move(ptr %from, ptr %to, ptr %counts, i64 0, i64 $LENGTH, i64 %shift)
  store ptr %to, ptr %from.p
  store ptr %from, ptr %to.p
  br label %next
next:
  %shift.next = add i64 %shift, 8
  store i64 %shift.next, ptr %shift.p
  %more = icmp slt i64 %shift.next, $HIGH
  br i1 %more, label %pass, label %last
last:
  %sorted = load ptr, ptr %from.p
  call void @finish(ptr %sorted, ptr %out, i64 0, i64 $COUNT)
  ret void
}

; A worker takes its share of the rows, in its part of the scratch memory.
define void @kernel(ptr %args, i64 %begin, i64 %end) {
entry:
  %worker.p = alloca i64
  %row.p = alloca i64
  $BUFFERS
  store i64 %begin, ptr %worker.p
  br label %test
test:
  %worker = load i64, ptr %worker.p
  %working = icmp slt i64 %worker, %end
  br i1 %working, label %start, label %leave
start:
  %worker.next = add i64 %worker, 1
  store i64 %worker.next, ptr %worker.p
  %before = mul i64 %worker, $ROWS
  %row.first = udiv i64 %before, $WORKERS
  %after = mul i64 %worker.next, $ROWS
  %row.end = udiv i64 %after, $WORKERS
  %mine = mul i64 %worker, $SPACE
  %first = getelementptr i8, ptr %scratch, i64 %mine
  %second = getelementptr $WORD, ptr %first, i64 $LENGTH
  %counts = getelementptr $WORD, ptr %second, i64 $LENGTH
  store i64 %row.first, ptr %row.p
  br label %more
more:
  %row = load i64, ptr %row.p
  %left = icmp slt i64 %row, %row.end
  br i1 %left, label %sort, label %test
sort:
  %key.at = mul i64 %row, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %out.at = mul i64 %row, $COUNT
  %out.row = getelementptr i32, ptr %out, i64 %out.at
  call void @row(ptr %key.row, ptr %out.row, ptr %first, ptr %second, ptr %counts)
  %row.next = add i64 %row, 1
  store i64 %row.next, ptr %row.p
  br label %more
leave:
  ret void
}
"""

# ---- long rows ---------------------------------------------------------------------------------

LONG_ROWS = """
; Where everything of one block lies. A row's state is a number per pass: bit 0 says which of its
; two halves the words stand in before the pass, bit 1 that the pass has nothing to move.
%place = type { ptr, ptr, ptr, ptr, i64, i64 }

define internal %place @locate(ptr %args, i64 %number) {
  $BUFFERS
  %row = udiv i64 %number, $BLOCKS
  %block = urem i64 %number, $BLOCKS
  %key.at = mul i64 %row, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %word.at = mul i64 %key.at, 2
  %words = getelementptr $WORD, ptr %scratch, i64 %word.at
  %all = getelementptr $WORD, ptr %scratch, i64 $ALL_WORDS
  %count.at = mul i64 %number, 1024
  %counts = getelementptr i8, ptr %all, i64 %count.at
  %after = getelementptr i8, ptr %all, i64 $ALL_COUNTS
  %state.at = mul i64 %row, 16
  %state = getelementptr i64, ptr %after, i64 %state.at
  %before = mul i64 %block, $LENGTH
  %begin = udiv i64 %before, $BLOCKS
  %last = add i64 %before, $LENGTH
  %end = udiv i64 %last, $BLOCKS
  %a = insertvalue %place poison, ptr %key.row, 0
  %b = insertvalue %place %a, ptr %words, 1
  %c = insertvalue %place %b, ptr %counts, 2
  %d = insertvalue %place %c, ptr %state, 3
  %e = insertvalue %place %d, i64 %begin, 4
  %f = insertvalue %place %e, i64 %end, 5
  ret %place %f
}

; The half of the row's words that they stand in before a pass, or with 1 the other half.
define internal ptr @half(%place %p, i64 %pass, i64 %other) {
  %words = extractvalue %place %p, 1
  %state = extractvalue %place %p, 3
  %now.p = getelementptr i64, ptr %state, i64 %pass
  %now = load i64, ptr %now.p
  %wanted = xor i64 %now, %other
  %bit = and i64 %wanted, 1
  %at = mul i64 %bit, $LENGTH
  %half = getelementptr $WORD, ptr %words, i64 %at
  ret ptr %half
}

define internal void @fill_block(ptr %args, i64 %number, i64 %pass) {
  %p = call %place @locate(ptr %args, i64 %number)
  %keys = extractvalue %place %p, 0
  %words = extractvalue %place %p, 1
  %state = extractvalue %place %p, 3
  %begin = extractvalue %place %p, 4
  %end = extractvalue %place %p, 5
  call void @fill(ptr %keys, ptr %words, i64 %begin, i64 %end)
  %whole = icmp eq i64 %begin, 0
  br i1 %whole, label %first, label %leave
first:
  store i64 0, ptr %state
  br label %leave
leave:
  ret void
}

define internal void @count_block(ptr %args, i64 %number, i64 %pass) {
  %p = call %place @locate(ptr %args, i64 %number)
  %counts = extractvalue %place %p, 2
  %begin = extractvalue %place %p, 4
  %end = extractvalue %place %p, 5
  %words = call ptr @half(%place %p, i64 %pass, i64 0)
  %bits = mul i64 %pass, 8
  %shift = add i64 %bits, $LOW
  call void @count(ptr %words, ptr %counts, i64 %begin, i64 %end, i64 %shift)
  ret void
}

; Offsets of a whole row: of each byte the blocks in turn. One call per row.
define internal void @sum_row(ptr %args, i64 %row, i64 %pass) {
entry:
  %d.p = alloca i64
  %b.p = alloca i64
  %total.p = alloca i32
  %digit.p = alloca i32
  %same.p = alloca i1
  %number = mul i64 %row, $BLOCKS
  %p = call %place @locate(ptr %args, i64 %number)
  %counts = extractvalue %place %p, 2
  %state = extractvalue %place %p, 3
  store i64 0, ptr %d.p
  store i32 0, ptr %total.p
  store i1 false, ptr %same.p
  br label %digit
digit:
  %d = load i64, ptr %d.p
  store i64 0, ptr %b.p
  store i32 0, ptr %digit.p
  br label %block
block:
  %b = load i64, ptr %b.p
  %line = mul i64 %b, 256
  %at = add i64 %line, %d
  %count.p = getelementptr i32, ptr %counts, i64 %at
  %count = load i32, ptr %count.p
  %total = load i32, ptr %total.p
  store i32 %total, ptr %count.p
  %total.next = add i32 %total, %count
  store i32 %total.next, ptr %total.p
  %of.digit = load i32, ptr %digit.p
  %of.digit.next = add i32 %of.digit, %count
  store i32 %of.digit.next, ptr %digit.p
  %b.next = add i64 %b, 1
  store i64 %b.next, ptr %b.p
  %more.blocks = icmp slt i64 %b.next, $BLOCKS
  br i1 %more.blocks, label %block, label %summed
summed:
  %all = icmp eq i32 %of.digit.next, $LENGTH
  %same = load i1, ptr %same.p
  %same.next = or i1 %same, %all
  store i1 %same.next, ptr %same.p
  %d.next = add i64 %d, 1
  store i64 %d.next, ptr %d.p
  %more.digits = icmp slt i64 %d.next, 256
  br i1 %more.digits, label %digit, label %decide
decide:
  %now.p = getelementptr i64, ptr %state, i64 %pass
  %now = load i64, ptr %now.p
  %skip = select i1 %same.next, i64 2, i64 0
  %now.done = or i64 %now, %skip
  store i64 %now.done, ptr %now.p
  %turn = select i1 %same.next, i64 0, i64 1
  %then = xor i64 %now, %turn
  %pass.next = add i64 %pass, 1
  %then.p = getelementptr i64, ptr %state, i64 %pass.next
  store i64 %then, ptr %then.p
  ret void
}

define internal void @move_block(ptr %args, i64 %number, i64 %pass) {
  %p = call %place @locate(ptr %args, i64 %number)
  %counts = extractvalue %place %p, 2
  %state = extractvalue %place %p, 3
  %begin = extractvalue %place %p, 4
  %end = extractvalue %place %p, 5
  %now.p = getelementptr i64, ptr %state, i64 %pass
  %now = load i64, ptr %now.p
  %skip = icmp sgt i64 %now, 1
  br i1 %skip, label %leave, label %move
move:
  %from = call ptr @half(%place %p, i64 %pass, i64 0)
  %to = call ptr @half(%place %p, i64 %pass, i64 1)
  %bits = mul i64 %pass, 8
  %shift = add i64 %bits, $LOW
  call void @move(ptr %from, ptr %to, ptr %counts, i64 %begin, i64 %end, i64 %shift)
  br label %leave
leave:
  ret void
}

define internal void @finish_block(ptr %args, i64 %number, i64 %pass) {
  %out = load ptr, ptr %args
  %p = call %place @locate(ptr %args, i64 %number)
  %begin = extractvalue %place %p, 4
  %end.all = extractvalue %place %p, 5
  %end = call i64 @llvm.smin.i64(i64 %end.all, i64 $COUNT)
  %words = call ptr @half(%place %p, i64 %pass, i64 0)
  %row = udiv i64 %number, $BLOCKS
  %out.at = mul i64 %row, $COUNT
  %out.row = getelementptr i32, ptr %out, i64 %out.at
  call void @finish(ptr %words, ptr %out.row, i64 %begin, i64 %end)
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
"""

PHASE = """
define void @$NAME(ptr %args, i64 %begin, i64 %end) {
entry:
  %i.p = alloca i64
  store i64 %begin, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %leave
body:
  call void @$STEP(ptr %args, i64 %i, i64 $PASS)
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}
"""

# ---- the few smallest --------------------------------------------------------------------------

FEW_OF_ROWS = """
; Put an element among the smallest so far if it is smaller than the last of them.
define internal void @offer($KEY %key, i64 %place, ptr %best, ptr %places) {
entry:
  %j.p = alloca i64
  %last.p = getelementptr $KEY, ptr %best, i64 $COUNT_LESS
  %last = load $KEY, ptr %last.p
  %smaller = icmp $LT $KEY %key, %last
  br i1 %smaller, label %start, label %leave
start:
  store i64 $COUNT_LESS, ptr %j.p
  br label %test
test:
  %j = load i64, ptr %j.p
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %look, label %put
look:
  %i = sub i64 %j, 1
  %other.p = getelementptr $KEY, ptr %best, i64 %i
  %other = load $KEY, ptr %other.p
  %above = icmp $LT $KEY %key, %other
  br i1 %above, label %shift, label %put
shift:
  %other.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %other, ptr %other.to
  %from = getelementptr i32, ptr %places, i64 %i
  %moved = load i32, ptr %from
  %to = getelementptr i32, ptr %places, i64 %j
  store i32 %moved, ptr %to
  store i64 %i, ptr %j.p
  br label %test
put:
  %key.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %key, ptr %key.to
  %place.to = getelementptr i32, ptr %places, i64 %j
  %small = trunc i64 %place to i32
  store i32 %small, ptr %place.to
  br label %leave
leave:
  ret void
}

; The first COUNT elements in order, as the smallest so far.
define internal void @begin(ptr %keys, ptr %best, ptr %places) {
entry:
  %i.p = alloca i64
  %j.p = alloca i64
  store i64 0, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %more = icmp slt i64 %i, $COUNT
  br i1 %more, label %take, label %leave
take:
  %key.p = getelementptr $KEY, ptr %keys, i64 %i
  %key = load $KEY, ptr %key.p
  store i64 %i, ptr %j.p
  br label %again
again:
  %j = load i64, ptr %j.p
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %look, label %put
look:
  %before = sub i64 %j, 1
  %other.p = getelementptr $KEY, ptr %best, i64 %before
  %other = load $KEY, ptr %other.p
  %above = icmp $LT $KEY %key, %other
  br i1 %above, label %shift, label %put
shift:
  %other.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %other, ptr %other.to
  %from = getelementptr i32, ptr %places, i64 %before
  %moved = load i32, ptr %from
  %to = getelementptr i32, ptr %places, i64 %j
  store i32 %moved, ptr %to
  store i64 %before, ptr %j.p
  br label %again
put:
  %key.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %key, ptr %key.to
  %place.to = getelementptr i32, ptr %places, i64 %j
  %small = trunc i64 %i to i32
  store i32 %small, ptr %place.to
  %next = add i64 %i, 1
  store i64 %next, ptr %i.p
  br label %test
leave:
  ret void
}

define internal void @row(ptr %keys, ptr %best, ptr %places) {
entry:
  %i.p = alloca i64
  %mask.p = alloca i32
  %last.p = getelementptr $KEY, ptr %best, i64 $COUNT_LESS
  call void @begin(ptr %keys, ptr %best, ptr %places)
  store i64 $COUNT, ptr %i.p
  br label %test
test:
  %i = load i64, ptr %i.p
  %ahead = add i64 %i, $LANES
  %whole = icmp sle i64 %ahead, $LENGTH
  br i1 %whole, label %look, label %rest
look:
  %last = load $KEY, ptr %last.p
  %one = insertelement <$LANES x $KEY> poison, $KEY %last, i64 0
  %limit = shufflevector <$LANES x $KEY> %one, <$LANES x $KEY> poison, <$LANES x i32> zeroinitializer
  %block.p = getelementptr $KEY, ptr %keys, i64 %i
  %block = load <$LANES x $KEY>, ptr %block.p, align $ALIGN
  %smaller = icmp $LT <$LANES x $KEY> %block, %limit
  %mask.all = bitcast <$LANES x i1> %smaller to i32
  store i32 %mask.all, ptr %mask.p
  store i64 %ahead, ptr %i.p
  br label %hits
hits:
  %mask = load i32, ptr %mask.p
  %some = icmp ne i32 %mask, 0
  br i1 %some, label %hit, label %test
hit:
  %lane = call i32 @llvm.cttz.i32(i32 %mask, i1 true)
  %less = sub i32 %mask, 1
  %mask.next = and i32 %mask, %less
  store i32 %mask.next, ptr %mask.p
  %lane.wide = zext i32 %lane to i64
  %at = add i64 %i, %lane.wide
  %hit.p = getelementptr $KEY, ptr %keys, i64 %at
  %hit.key = load $KEY, ptr %hit.p
  call void @offer($KEY %hit.key, i64 %at, ptr %best, ptr %places)
  br label %hits
rest:
  %r = load i64, ptr %i.p
  %left = icmp slt i64 %r, $LENGTH
  br i1 %left, label %single, label %leave
single:
  %single.p = getelementptr $KEY, ptr %keys, i64 %r
  %single.key = load $KEY, ptr %single.p
  call void @offer($KEY %single.key, i64 %r, ptr %best, ptr %places)
  %i.next = add i64 %r, 1
  store i64 %i.next, ptr %i.p
  br label %rest
leave:
  ret void
}

define void @kernel(ptr %args, i64 %begin, i64 %end) {
entry:
  %row.p = alloca i64
  $BUFFERS
  store i64 %begin, ptr %row.p
  br label %test
test:
  %row = load i64, ptr %row.p
  %more = icmp slt i64 %row, %end
  br i1 %more, label %body, label %leave
body:
  %key.at = mul i64 %row, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %best.at = mul i64 %row, $COUNT
  %best = getelementptr $KEY, ptr %scratch, i64 %best.at
  %out.row = getelementptr i32, ptr %out, i64 %best.at
  call void @row(ptr %key.row, ptr %best, ptr %out.row)
  %row.next = add i64 %row, 1
  store i64 %row.next, ptr %row.p
  br label %test
leave:
  ret void
}

declare i32 @llvm.cttz.i32(i32, i1)
"""

# ---- short rows --------------------------------------------------------------------------------

SHORT_ROWS = """
; The places of LANES neighbouring elements: how many others go before each of them.
define internal void @ranks(ptr %keys, ptr %out, i64 %start) {
entry:
  %j.p = alloca i64
  %rank.p = alloca <$LANES x i32>
  %mine.p = getelementptr $KEY, ptr %keys, i64 %start
  %mine = load <$LANES x $KEY>, ptr %mine.p, align $ALIGN
  %end = add i64 %start, $LANES
  store <$LANES x i32> zeroinitializer, ptr %rank.p
  store i64 0, ptr %j.p
  br label %test.before
test.before:
  %b = load i64, ptr %j.p
  %more.before = icmp slt i64 %b, %start
  br i1 %more.before, label %before, label %test.among
before:
  %b.p = getelementptr $KEY, ptr %keys, i64 %b
  %b.key = load $KEY, ptr %b.p
  %b.one = insertelement <$LANES x $KEY> poison, $KEY %b.key, i64 0
  %b.all = shufflevector <$LANES x $KEY> %b.one, <$LANES x $KEY> poison, <$LANES x i32> zeroinitializer
  %b.hit = icmp $LE <$LANES x $KEY> %b.all, %mine
  %b.add = zext <$LANES x i1> %b.hit to <$LANES x i32>
  %b.rank = load <$LANES x i32>, ptr %rank.p
  %b.sum = add <$LANES x i32> %b.rank, %b.add
  store <$LANES x i32> %b.sum, ptr %rank.p
  %b.next = add i64 %b, 1
  store i64 %b.next, ptr %j.p
  br label %test.before
test.among:
  %a = load i64, ptr %j.p
  %more.among = icmp slt i64 %a, %end
  br i1 %more.among, label %among, label %test.after
among:
  %a.p = getelementptr $KEY, ptr %keys, i64 %a
  %a.key = load $KEY, ptr %a.p
  %a.one = insertelement <$LANES x $KEY> poison, $KEY %a.key, i64 0
  %a.all = shufflevector <$LANES x $KEY> %a.one, <$LANES x $KEY> poison, <$LANES x i32> zeroinitializer
  %a.less = icmp $LT <$LANES x $KEY> %a.all, %mine
  %a.same = icmp eq <$LANES x $KEY> %a.all, %mine
  %a.lane = sub i64 %a, %start
  %a.small = trunc i64 %a.lane to i32
  %a.first = insertelement <$LANES x i32> poison, i32 %a.small, i64 0
  %a.here = shufflevector <$LANES x i32> %a.first, <$LANES x i32> poison, <$LANES x i32> zeroinitializer
  %a.earlier = icmp ult <$LANES x i32> %a.here, <$NUMBERS>
  %a.tie = and <$LANES x i1> %a.same, %a.earlier
  %a.hit = or <$LANES x i1> %a.less, %a.tie
  %a.add = zext <$LANES x i1> %a.hit to <$LANES x i32>
  %a.rank = load <$LANES x i32>, ptr %rank.p
  %a.sum = add <$LANES x i32> %a.rank, %a.add
  store <$LANES x i32> %a.sum, ptr %rank.p
  %a.next = add i64 %a, 1
  store i64 %a.next, ptr %j.p
  br label %test.among
test.after:
  %c = load i64, ptr %j.p
  %more.after = icmp slt i64 %c, $LENGTH
  br i1 %more.after, label %after, label %put
after:
  %c.p = getelementptr $KEY, ptr %keys, i64 %c
  %c.key = load $KEY, ptr %c.p
  %c.one = insertelement <$LANES x $KEY> poison, $KEY %c.key, i64 0
  %c.all = shufflevector <$LANES x $KEY> %c.one, <$LANES x $KEY> poison, <$LANES x i32> zeroinitializer
  %c.hit = icmp $LT <$LANES x $KEY> %c.all, %mine
  %c.add = zext <$LANES x i1> %c.hit to <$LANES x i32>
  %c.rank = load <$LANES x i32>, ptr %rank.p
  %c.sum = add <$LANES x i32> %c.rank, %c.add
  store <$LANES x i32> %c.sum, ptr %rank.p
  %c.next = add i64 %c, 1
  store i64 %c.next, ptr %j.p
  br label %test.after
put:
  %rank = load <$LANES x i32>, ptr %rank.p
  %from = trunc i64 %start to i32
  %from.one = insertelement <$LANES x i32> poison, i32 %from, i64 0
  %from.all = shufflevector <$LANES x i32> %from.one, <$LANES x i32> poison, <$LANES x i32> zeroinitializer
  %place = add <$LANES x i32> %from.all, <$NUMBERS>
  %wanted = icmp ult <$LANES x i32> %rank, splat (i32 $COUNT)
  %at = zext <$LANES x i32> %rank to <$LANES x i64>
  %target = getelementptr i32, ptr %out, <$LANES x i64> %at
  call void @llvm.masked.scatter.v$LANESi32.v$LANESp0(
    <$LANES x i32> %place, <$LANES x ptr> %target, i32 4, <$LANES x i1> %wanted)
  ret void
}

; The last block of a row ends with it: some elements may be placed twice, in the same place.
define void @kernel(ptr %args, i64 %begin, i64 %end) {
entry:
  %row.p = alloca i64
  %start.p = alloca i64
  $BUFFERS
  store i64 %begin, ptr %row.p
  br label %test
test:
  %row = load i64, ptr %row.p
  %more = icmp slt i64 %row, %end
  br i1 %more, label %body, label %leave
body:
  %key.at = mul i64 %row, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %out.at = mul i64 %row, $COUNT
  %out.row = getelementptr i32, ptr %out, i64 %out.at
  %row.next = add i64 %row, 1
  store i64 %row.next, ptr %row.p
  store i64 0, ptr %start.p
  br label %block
block:
  %start.wanted = load i64, ptr %start.p
  %start = call i64 @llvm.smin.i64(i64 %start.wanted, i64 $LAST)
  call void @ranks(ptr %key.row, ptr %out.row, i64 %start)
  %start.next = add i64 %start.wanted, $LANES
  store i64 %start.next, ptr %start.p
  %left = icmp slt i64 %start.next, $LENGTH
  br i1 %left, label %block, label %test
leave:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.masked.scatter.v$LANESi32.v$LANESp0(
  <$LANES x i32>, <$LANES x ptr>, i32, <$LANES x i1>)
"""

# ---- the choice --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A program's text, and the bytes of scratch memory that a launch of it needs."""

    text: str
    scratch: int


def program(dtype: DType, rows: int, length: int, count: int, threads: int) -> Program | None:
    """The program that finds where the ``count`` smallest of each row stand; None for short rows,
    which the core sorts faster with vectors. Its buffers: int32 places out, keys in, scratch."""
    if length < LEAST or not rows or not count:
        return None
    if count <= FEW and 4 * count <= length and length * length > FEW_WORTH * (count + 1):
        return _few(dtype, rows, length, count)
    if length <= SHORT:
        return _short(dtype, rows, length, count)
    if threads > 1 and length >= LONG and rows < 2 * threads:
        return _long(dtype, rows, length, count, BLOCKS * threads)
    return _rows(dtype, rows, length, count, min(rows, WORKERS * threads))


def phases(text: str) -> list[tuple[str, int]]:
    """The functions of a text that are launched one after the other, each with its grid; none for
    a text of one kernel."""
    found = re.findall(r"^; phase (\w+) (\d+)$", text, re.MULTILINE)
    return [(name, int(grid)) for name, grid in found]


def _short(dtype: DType, rows: int, length: int, count: int) -> Program:
    lanes = LANES if length >= LANES else LEAST
    text = _written(SHORT_ROWS, dtype, length, count, lanes)
    text = text.replace("$LAST", str(length - lanes))
    return Program(_headed(text, rows, length * length / 16), 1)


def _few(dtype: DType, rows: int, length: int, count: int) -> Program:
    work = length / 2 + 40 * count
    text = _written(FEW_OF_ROWS, dtype, length, count)
    return Program(_headed(text, rows, work), rows * count * dtype.itemsize)


def _rows(dtype: DType, rows: int, length: int, count: int, workers: int) -> Program:
    wide = dtype.bits > 32
    space = length * (32 if wide else 16) + 4 * DIGITS
    text = _written(FILL + COUNT + MOVE + FINISH + ROWS + MEMSET, dtype, length, count)
    text = text.replace("$ROWS", str(rows)).replace("$WORKERS", str(workers))
    work = rows / workers * length * 12 * dtype.itemsize
    return Program(_headed(text.replace("$SPACE", str(space)), workers, work), workers * space)


def _long(dtype: DType, rows: int, length: int, count: int, blocks: int) -> Program:
    passes = dtype.itemsize
    words = 2 * rows * length
    counts = rows * blocks * 4 * DIGITS
    text = _written(FILL + COUNT + MOVE + FINISH + LONG_ROWS + MEMSET, dtype, length, count)
    for mark, value in (("BLOCKS", blocks), ("ALL_WORDS", words), ("ALL_COUNTS", counts)):
        text = text.replace(f"${mark}", str(value))
    steps = [("fill_block", 0, rows * blocks)]
    for number in range(passes):
        steps += [
            ("count_block", number, rows * blocks),
            ("sum_row", number, rows),
            ("move_block", number, rows * blocks),
        ]
    steps.append(("finish_block", passes, rows * blocks))
    lines = ["; coregrad buffers=3 step=1 work=0"]
    for step, number, grid in steps:
        name = f"{step}_{number}"
        lines.append(f"; phase {name} {grid}")
        phase = PHASE.replace("$NAME", name).replace("$STEP", step)
        text += phase.replace("$PASS", str(number))
    scratch = words * (16 if dtype.bits > 32 else 8) + counts + rows * 16 * 8
    return Program("\n".join(lines) + "\n" + text, scratch)


MEMSET = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def _headed(text: str, grid: int, work: float) -> str:
    return f"; coregrad buffers=3 step=1 work={work:.1f} grid={grid}\n{text}"


def _written(text: str, dtype: DType, length: int, count: int, lanes: int = LANES) -> str:
    """A text with what depends on the dtype and the size of a row put in."""
    bits = dtype.bits
    own = f"i{bits}"
    signed = dtype.kind == "int"
    wide = bits > 32
    widen = f"zext {own} %key.own to i64" if bits < 64 else "add i64 %key.own, 0"
    if wide:
        pack = (
            "%both = insertelement <2 x i64> poison, i64 %key, i64 0\n"
            "  %word = insertelement <2 x i64> %both, i64 %i, i64 1"
        )
    else:
        pack = "%up = shl i64 %key, 32\n  %word = or i64 %up, %i"
    marks = {
        "BUFFERS": BUFFERS.strip(),
        "KEY": own,
        "BIAS": str(-(1 << (bits - 1)) if signed else 0),
        "WIDEN": widen,
        "PACK": pack,
        "WORD": "<2 x i64>" if wide else "i64",
        "FIRST": "extractelement <2 x i64> %word, i64 0" if wide else "add i64 %word, 0",
        "PLACE": "8" if wide else "0",
        "LOW": "0" if wide else "32",
        "HIGH": str(bits if wide else 32 + bits),
        "LENGTH": str(length),
        "COUNT_LESS": str(count - 1),
        "COUNT": str(count),
        "LANES": str(lanes),
        "NUMBERS": ", ".join(f"i32 {lane}" for lane in range(lanes)),
        "ALIGN": str(dtype.itemsize),
        "LT": "slt" if signed else "ult",
        "LE": "sle" if signed else "ule",
    }
    for mark, value in marks.items():
        text = text.replace(f"${mark}", value)
    return text
