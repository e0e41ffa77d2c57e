"""Short rows sorted by counting: the place of an element is the number of those before it.

Every element is compared with a vector of others at a time, which for a hundred elements is less
work than sorting them by bytes.
"""

from __future__ import annotations

from coregrad.dtypes import DType
from coregrad_cpu.llvm.sorting.text import BUFFERS, LANES, Program, counted, filled, headed, written

LEAST = 16  # elements of a row, at least, and of its vectors if it has less than LANES

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
  br label %before
$BEFORE$AMONG$AFTERput:
  %rank = load <$LANES x i32>, ptr %rank.p
  %from = trunc i64 %start to i32
  %from.one = insertelement <$LANES x i32> poison, i32 %from, i64 0
  %from.all = shufflevector <$LANES x i32> %from.one, <$LANES x i32> poison,
    <$LANES x i32> zeroinitializer
  %place = add <$LANES x i32> %from.all, <$NUMBERS>
  %wanted = icmp ult <$LANES x i32> %rank, splat (i32 $COUNT)
  %at = zext <$LANES x i32> %rank to <$LANES x i64>
  %target = getelementptr i32, ptr %out, <$LANES x i64> %at
  call void @llvm.masked.scatter.v$LANESi32.v$LANESp0(
    <$LANES x i32> %place, <$LANES x ptr> %target, i32 4, <$LANES x i1> %wanted)
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.masked.scatter.v$LANESi32.v$LANESp0(
  <$LANES x i32>, <$LANES x ptr>, i32, <$LANES x i1>)
"""

KERNEL = counted(
    """
; The last block of a row ends with it: some elements may be placed twice, in the same place.
define void @kernel(ptr %args, i64 %begin, i64 %end)
""",
    """
  %key.at = mul i64 %i, $LENGTH
  %key.row = getelementptr $KEY, ptr %keys, i64 %key.at
  %out.at = mul i64 %i, $COUNT
  %out.row = getelementptr i32, ptr %out, i64 %out.at
  store i64 0, ptr %start.p
  br label %block
block:
  %start.wanted = load i64, ptr %start.p
  %start = call i64 @llvm.smin.i64(i64 %start.wanted, i64 $LAST)
  call void @ranks(ptr %key.row, ptr %out.row, i64 %start)
  %start.next = add i64 %start.wanted, $LANES
  store i64 %start.next, ptr %start.p
  %left = icmp slt i64 %start.next, $LENGTH
  br i1 %left, label %block, label %done
done:
""",
    "%start.p = alloca i64" + BUFFERS,
)

# Compare my elements with all from j up to an end; where HIT says so, they go behind.
COMPARE = """$NAME:
  %$NAME.j = load i64, ptr %j.p
  %$NAME.more = icmp slt i64 %$NAME.j, $END
  br i1 %$NAME.more, label %$NAME.body, label %$NEXT
$NAME.body:
  %$NAME.p = getelementptr $KEY, ptr %keys, i64 %$NAME.j
  %$NAME.key = load $KEY, ptr %$NAME.p
  %$NAME.one = insertelement <$LANES x $KEY> poison, $KEY %$NAME.key, i64 0
  %$NAME.all = shufflevector <$LANES x $KEY> %$NAME.one, <$LANES x $KEY> poison,
    <$LANES x i32> zeroinitializer
  $HIT
  %$NAME.add = zext <$LANES x i1> %$NAME.hit to <$LANES x i32>
  %$NAME.rank = load <$LANES x i32>, ptr %rank.p
  %$NAME.sum = add <$LANES x i32> %$NAME.rank, %$NAME.add
  store <$LANES x i32> %$NAME.sum, ptr %rank.p
  %$NAME.next = add i64 %$NAME.j, 1
  store i64 %$NAME.next, ptr %j.p
  br label %$NAME
"""
NOT_LARGER = "%before.hit = icmp $LE <$LANES x $KEY> %before.all, %mine"
SMALLER = "%after.hit = icmp $LT <$LANES x $KEY> %after.all, %mine"
SMALLER_OR_EARLIER = """%less = icmp $LT <$LANES x $KEY> %among.all, %mine
  %same = icmp eq <$LANES x $KEY> %among.all, %mine
  %lane = sub i64 %among.j, %start
  %lane.small = trunc i64 %lane to i32
  %lane.one = insertelement <$LANES x i32> poison, i32 %lane.small, i64 0
  %lane.all = shufflevector <$LANES x i32> %lane.one, <$LANES x i32> poison,
    <$LANES x i32> zeroinitializer
  %earlier = icmp ult <$LANES x i32> %lane.all, <$NUMBERS>
  %tie = and <$LANES x i1> %same, %earlier
  %among.hit = or <$LANES x i1> %less, %tie"""


def short(dtype: DType, rows: int, length: int, count: int) -> Program:
    """Rows of at least LEAST elements."""
    lanes = LANES if length >= LANES else LEAST
    text = filled(
        SHORT_ROWS + KERNEL,
        BEFORE=filled(COMPARE, NAME="before", END="%start", NEXT="among", HIT=NOT_LARGER),
        AMONG=filled(COMPARE, NAME="among", END="%end", NEXT="after", HIT=SMALLER_OR_EARLIER),
        AFTER=filled(COMPARE, NAME="after", END="$LENGTH", NEXT="put", HIT=SMALLER),
    )
    text = filled(written(text, dtype, length, count, lanes), LAST=length - lanes)
    return Program(headed(text, rows, length * length / 16), 1)
