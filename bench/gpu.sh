#!/usr/bin/env bash
# What holds on a real NVIDIA GPU, and how fast it is: in five minutes at most, without a network.
#
#   bench/gpu.sh [FOLDER]       one JSON file goes to FOLDER, else to bench/results; it is printed too
#
# Needs Python 3.11 or newer with numpy, cupy, pytest (which brings pluggy), hypothesis and torch (which brings mpmath, and
# is timed beside). Everything else is taken from this repository. Each step has a time limit of its own, and all of them
# together have one, so that the file is there in any case. COREGRAD_EMULATE=cuda tries the script itself, without a GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD
folder=${1:-bench/results}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 2
result=$folder/gpu-$(date +%Y-%m-%d-%H%M).json
python=${PYTHON:-python3}
deadline=$(($(date +%s) + 285))
jobs=$(($(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2) / 2))
((jobs < 1)) && jobs=1
((jobs > 6)) && jobs=6

work=$(mktemp -d)
log=$work/log
mkdir "$log"
: > "$log/steps.txt"
finish() {
  "$python" "$root/bench/gpu/summary.py" "$log" "$result"
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 1' INT TERM

# step NAME SECONDS COMMAND...: what it prints goes to LOG/NAME.txt
step() {
  local name=$1 limit=$2 left=$((deadline - $(date +%s))) began code
  shift 2
  ((limit > left)) && limit=$left
  if ((limit < 5)); then
    echo "$name skipped 0" >> "$log/steps.txt"
    return 1
  fi
  began=$(date +%s)
  timeout --kill-after=5 "$limit" "$@" > "$log/$name.txt" 2>&1
  code=$?
  echo "$name $code $(($(date +%s) - began))" >> "$log/steps.txt"
  echo "$name: exit $code after $(($(date +%s) - began)) s (limit $limit)" >&2
  return $code
}

step machine 10 nvidia-smi
step install 30 "$python" bench/gpu/install.py "$work/venv" && python=$work/venv/bin/python
export COREGRAD_CACHE=$work/cache COREGRAD_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1
export PATH=$PATH:/usr/local/cuda/bin
cd "$work" || exit 2 # nothing is to be imported from the repository's top by chance

if step smoke 45 "$python" "$root/bench/gpu/smoke.py"; then
  step golden 45 "$python" "$root/bench/gpu/golden.py" check
  step timings 90 "$python" "$root/bench/gpu/timings.py" "$log/timings.json"
  step mnist 45 "$python" "$root/examples/beautiful_mnist.py"
  for level in core standard; do # the first is a part of the second, and there if that one is cut off
    step $level 130 "$python" -m coregrad_conformance run cuda --level $level --jobs $jobs \
      --report "$log/$level"
  done
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck; do
      step $tool 40 compute-sanitizer --tool $tool --error-exitcode 9 "$python" \
        "$root/bench/gpu/smoke.py" three
    done
  fi
fi
