#!/usr/bin/env bash
# What holds on a real NVIDIA GPU, and how fast it is: in ten minutes at most, without a network if CuPy is there.
#
#   bench/gpu.sh [FOLDER]       results go to FOLDER, else to bench/results/gpu-DATE
#
# Needs Python 3.11 or newer with numpy, pluggy, hypothesis and mpmath (torch, and pytest, bring these along); torch is
# timed where it is installed. Everything else is taken from this repository. Each step has a time limit of its own, and
# the last line printed is one JSON object. COREGRAD_EMULATE=cuda tries the script itself, without a GPU.
set -u
cd "$(dirname "$0")/.." || exit 2
root=$PWD
folder=${1:-bench/results/gpu-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 2
python=${PYTHON:-python3}
jobs=$(($(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2) / 2))
((jobs < 1)) && jobs=1
((jobs > 6)) && jobs=6
deadline=$(($(date +%s) + 590))
: > "$folder/steps.txt"

# step NAME SECONDS COMMAND...: what it prints goes to FOLDER/NAME.txt
step() {
  local name=$1 limit=$2 left=$((deadline - $(date +%s))) began code
  shift 2
  ((limit > left)) && limit=$left
  if ((limit < 5)); then
    echo "$name skipped 0" >> "$folder/steps.txt"
    return 1
  fi
  began=$(date +%s)
  timeout --kill-after=5 "$limit" "$@" > "$folder/$name.txt" 2>&1
  code=$?
  echo "$name $code $(($(date +%s) - began))" >> "$folder/steps.txt"
  echo "$name: exit $code after $(($(date +%s) - began)) s (limit $limit)"
  return $code
}

step machine 20 nvidia-smi
if [ -z "${COREGRAD_EMULATE:-}" ] && ! "$python" -c "import cupy" 2> /dev/null; then
  step cupy 120 "$python" -m pip install 'cupy-cuda13x[ctk]'
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step install 60 "$python" bench/gpu/install.py "$work/venv" && python=$work/venv/bin/python
export COREGRAD_CACHE=$work/cache COREGRAD_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1
cd "$work" || exit 2 # nothing is to be imported from the repository's top by chance

if step smoke 60 "$python" "$root/bench/gpu/smoke.py"; then
  step golden 60 "$python" "$root/bench/gpu/golden.py" check
  step timings 120 "$python" "$root/bench/gpu/timings.py" "$folder/timings.json"
  step core 120 "$python" -m coregrad_conformance run cuda --level core --jobs $jobs \
    --report "$folder/core"
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck; do
      step $tool 45 compute-sanitizer --tool $tool --error-exitcode 9 "$python" \
        "$root/bench/gpu/smoke.py"
    done
  fi
  step standard 240 "$python" -m coregrad_conformance run cuda --level standard --jobs $jobs \
    --report "$folder/standard"
fi
"$python" "$root/bench/gpu/summary.py" "$folder"
