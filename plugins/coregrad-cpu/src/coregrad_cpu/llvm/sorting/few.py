"""The few smallest elements of a row: read it once, and keep the smallest so far in order.

Elements are compared by the vector with the largest that is kept; most vectors are passed over.
"""

from __future__ import annotations

from coregrad.dtypes import DType
from coregrad_cpu.llvm.sorting.text import BUFFERS, Program, counted, headed, written

FEW_OF_ROWS = """
; Put an element before all larger ones: these move up, into the hole behind them.
define internal void @put($KEY %key, i64 %place, ptr %best, ptr %places, i64 %hole) {
entry:
  %j.p = alloca i64
  store i64 %hole, ptr %j.p
  br label %test
test:
  %j = load i64, ptr %j.p
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %look, label %done
look:
  %i = sub i64 %j, 1
  %other.p = getelementptr $KEY, ptr %best, i64 %i
  %other = load $KEY, ptr %other.p
  %above = icmp $LT $KEY %key, %other
  br i1 %above, label %shift, label %done
shift:
  %other.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %other, ptr %other.to
  %from = getelementptr i32, ptr %places, i64 %i
  %moved = load i32, ptr %from
  %to = getelementptr i32, ptr %places, i64 %j
  store i32 %moved, ptr %to
  store i64 %i, ptr %j.p
  br label %test
done:
  %key.to = getelementptr $KEY, ptr %best, i64 %j
  store $KEY %key, ptr %key.to
  %place.to = getelementptr i32, ptr %places, i64 %j
  %small = trunc i64 %place to i32
  store i32 %small, ptr %place.to
  ret void
}

; Take an element if it is smaller than the last of the smallest so far, whose place it fills.
define internal void @offer(ptr %keys, i64 %place, ptr %best, ptr %places) {
  %key.p = getelementptr $KEY, ptr %keys, i64 %place
  %key = load $KEY, ptr %key.p
  %last.p = getelementptr $KEY, ptr %best, i64 $COUNT_LESS
  %last = load $KEY, ptr %last.p
  %smaller = icmp $LT $KEY %key, %last
  br i1 %smaller, label %take, label %leave
take:
  call void @put($KEY %key, i64 %place, ptr %best, ptr %places, i64 $COUNT_LESS)
  br label %leave
leave:
  ret void
}

define internal void @row(ptr %keys, ptr %best, ptr %places) {
entry:
  %i.p = alloca i64
  %mask.p = alloca i32
  %last.p = getelementptr $KEY, ptr %best, i64 $COUNT_LESS
  store i64 0, ptr %i.p
  br label %first
first:
  %f = load i64, ptr %i.p
  %first.p = getelementptr $KEY, ptr %keys, i64 %f
  %first.key = load $KEY, ptr %first.p
  call void @put($KEY %first.key, i64 %f, ptr %best, ptr %places, i64 %f)
  %f.next = add i64 %f, 1
  store i64 %f.next, ptr %i.p
  %filling = icmp slt i64 %f.next, $COUNT
  br i1 %filling, label %first, label %test
test:
  %i = load i64, ptr %i.p
  %ahead = add i64 %i, $LANES
  %whole = icmp sle i64 %ahead, $LENGTH
  br i1 %whole, label %look, label %rest
look:
  %last = load $KEY, ptr %last.p
  %one = insertelement <$LANES x $KEY> poison, $KEY %last, i64 0
  %limit = shufflevector <$LANES x $KEY> %one, <$LANES x $KEY> poison,
    <$LANES x i32> zeroinitializer
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
  call void @offer(ptr %keys, i64 %at, ptr %best, ptr %places)
  br label %hits
rest:
  %r = load i64, ptr %i.p
  %left = icmp slt i64 %r, $LENGTH
  br i1 %left, label %single, label %leave
single:
  call void @offer(ptr %keys, i64 %r, ptr %best, ptr %places)
  %i.next = add i64 %r, 1
  store i64 %i.next, ptr %i.p
  br label %rest
leave:
  ret void
}

declare i32 @llvm.cttz.i32(i32, i1)
"""

KERNEL = counted(
    "define void @kernel(ptr %args, i64 %begin, i64 %end)",
    """
  %key.at = mul i64 %i, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %best.at = mul i64 %i, $COUNT
  %best = getelementptr $KEY, ptr %scratch, i64 %best.at
  %out.row = getelementptr i32, ptr %out, i64 %best.at
  call void @row(ptr %key.row, ptr %best, ptr %out.row)
""",
    BUFFERS,
)


def few(dtype: DType, rows: int, length: int, count: int) -> Program:
    """The ``count`` smallest of rows of at least as many elements."""
    text = written(FEW_OF_ROWS + KERNEL, dtype, length, count)
    return Program(headed(text, rows, length / 2 + 40 * count), rows * count * dtype.itemsize)
