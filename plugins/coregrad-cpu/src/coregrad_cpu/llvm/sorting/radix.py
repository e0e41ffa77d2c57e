"""Rows sorted by their bytes, the lowest byte first: one thread per row, or all for a long one.

A pass counts how often each byte occurs, adds up where the words with each byte begin, and moves
every word to the next place for its byte. A pass whose words all have one byte moves nothing.
"""

from __future__ import annotations

from coregrad.dtypes import DType
from coregrad_cpu.llvm.sorting.text import BUFFERS, Program, counted, filled, headed, written

DIGITS = 256  # values of the byte that one pass sorts by
STATES = 16  # numbers kept for a long row: one per pass, and to spare

FILL = counted(
    """
; Words of the keys begin to end, with their places.
define internal void @fill(ptr %keys, ptr %words, i64 %begin, i64 %end)
""",
    """
  %key.p = getelementptr $KEY, ptr %keys, i64 %i
  %key.raw = load $KEY, ptr %key.p
  %key.own = xor $KEY %key.raw, $BIAS
  %key = $WIDEN
  $PACK
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  store $WORD %word, ptr %word.p, align 8
""",
)

COUNT = counted(
    """
; Count each value of the byte at a shift.
define internal void @count(ptr %words, ptr %counts, i64 %begin, i64 %end, i64 %shift)
""",
    """
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  %key = load i64, ptr %word.p, align 8
  %down = lshr i64 %key, %shift
  %digit = and i64 %down, 255
  %count.p = getelementptr i32, ptr %counts, i64 %digit
  %count = load i32, ptr %count.p
  %count.next = add i32 %count, 1
  store i32 %count.next, ptr %count.p
""",
    "call void @llvm.memset.p0.i64(ptr %counts, i8 0, i64 1024, i1 false)",
)

MOVE = counted(
    """
; Put each word where the offset of its byte says, which is then one more.
define internal void @move(ptr %from, ptr %to, ptr %offsets, i64 %begin, i64 %end, i64 %shift)
""",
    """
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
""",
)

FINISH = counted(
    """
; The places of the words begin to end.
define internal void @finish(ptr %words, ptr %out, i64 %begin, i64 %end)
""",
    """
  %word.p = getelementptr $WORD, ptr %words, i64 %i
  %place.p = getelementptr i8, ptr %word.p, i64 $PLACE
  %place = load i32, ptr %place.p
  %out.p = getelementptr i32, ptr %out, i64 %i
  store i32 %place, ptr %out.p
""",
)

SHARED = FILL + COUNT + MOVE + FINISH + "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"

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
"""

SHARES = counted(
    """
define internal void @rows(
    ptr %keys, ptr %out, ptr %first, ptr %second, ptr %counts, i64 %begin, i64 %end)
""",
    """
  %key.at = mul i64 %i, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %out.at = mul i64 %i, $COUNT
  %out.row = getelementptr i32, ptr %out, i64 %out.at
  call void @row(ptr %key.row, ptr %out.row, ptr %first, ptr %second, ptr %counts)
""",
) + counted(
    """
; A worker takes its share of the rows, in its part of the scratch memory.
define void @kernel(ptr %args, i64 %begin, i64 %end)
""",
    """
  %before = mul i64 %i, $ROWS
  %row.first = udiv i64 %before, $WORKERS
  %after = add i64 %before, $ROWS
  %row.end = udiv i64 %after, $WORKERS
  %mine = mul i64 %i, $SPACE
  %first = getelementptr i8, ptr %scratch, i64 %mine
  %second = getelementptr $WORD, ptr %first, i64 $LENGTH
  %counts = getelementptr $WORD, ptr %second, i64 $LENGTH
  call void @rows(ptr %keys, ptr %out, ptr %first, ptr %second, ptr %counts,
    i64 %row.first, i64 %row.end)
""",
    BUFFERS,
)

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
  %state.at = mul i64 %row, $STATES
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

PHASE = counted(
    "define void @$NAME(ptr %args, i64 %begin, i64 %end)",
    """
  call void @$STEP(ptr %args, i64 %i, i64 $PASS)
""",
)


def many_rows(dtype: DType, rows: int, length: int, count: int, workers: int) -> Program:
    """Many rows, dealt out to workers, each with scratch memory for one row."""
    space = length * 2 * _word_bytes(dtype) + 4 * DIGITS
    text = filled(
        written(SHARED + ROWS + SHARES, dtype, length, count),
        ROWS=rows,
        WORKERS=workers,
        SPACE=space,
    )
    work = rows / workers * length * 12 * dtype.itemsize
    return Program(headed(text, workers, work), workers * space)


def long_rows(dtype: DType, rows: int, length: int, count: int, blocks: int) -> Program:
    """A few long rows, each cut into blocks: every step for all blocks is a launch of its own."""
    words = 2 * rows * length
    counts = rows * blocks * 4 * DIGITS
    text = filled(
        written(SHARED + LONG_ROWS, dtype, length, count),
        BLOCKS=blocks,
        ALL_WORDS=words,
        ALL_COUNTS=counts,
        STATES=STATES,
    )
    lines = ["; coregrad buffers=3 step=1 work=0"]
    for step, number, grid in _steps(dtype.itemsize, rows, blocks):
        name = f"{step}_{number}"
        lines.append(f"; phase {name} {grid}")
        text += filled(PHASE, NAME=name, STEP=step, PASS=number)
    scratch = words * _word_bytes(dtype) + counts + rows * STATES * 8
    return Program("\n".join(lines) + "\n" + text, scratch)


def _steps(passes: int, rows: int, blocks: int) -> list[tuple[str, int, int]]:
    """(function, number of the pass, iterations) of every launch."""
    steps = [("fill_block", 0, rows * blocks)]
    for number in range(passes):
        steps += [
            ("count_block", number, rows * blocks),
            ("sum_row", number, rows),
            ("move_block", number, rows * blocks),
        ]
    return [*steps, ("finish_block", passes, rows * blocks)]


def _word_bytes(dtype: DType) -> int:
    return 16 if dtype.bits > 32 else 8
