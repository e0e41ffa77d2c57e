"""What a test run asks for afterwards: the report, other compilers' opinions of the texts it met.

::

    python -m coregrad_simt path cupy        # for PYTHONPATH
    python -m coregrad_simt report FILE      # fails if nothing was launched, or something faulted
    python -m coregrad_simt cubins FOLDER    # every CUDA text for every architecture
    python -m coregrad_simt spaces FOLDER    # every Metal text's address spaces
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coregrad_simt import fakes, report
from coregrad_simt.cuda import ptxas
from coregrad_simt.errors import CompileError, MissingTool
from coregrad_simt.metal import spaces

BATCH = 50  # texts that a compiler is given at a time
SHARED_BYTES = 48 << 10  # what a block has on every architecture without opting in


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; the result is the process's."""
    parser = argparse.ArgumentParser(prog="python -m coregrad_simt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("path").add_argument("name", choices=sorted(fakes.MODULES))
    commands.add_parser("report").add_argument("file", type=Path)
    commands.add_parser("spaces").add_argument("folder", type=Path)
    cubins = commands.add_parser("cubins")
    cubins.add_argument("folder", type=Path)
    cubins.add_argument("--arch", action="append", help="sm_90; may be repeated")
    cubins.add_argument(
        "--tiled", action="store_true", help="kernels without shared memory may spill"
    )
    cubins.add_argument("--option", action="append", default=[], help="an option of NVRTC")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "path":
            print(fakes.path(asked.name))
            return 0
        if asked.command == "report":
            return _report(asked.file)
        if asked.command == "spaces":
            return _spaces(asked.folder)
        return _cubins(asked)
    except MissingTool as error:
        print(f"missing: {error}")
        return 3


def _report(path: Path) -> int:
    numbers, faults = report.read(path)
    print(report.text(numbers, faults))
    return 1 if faults or report.total(numbers) == 0 else 0


def _spaces(folder: Path) -> int:
    wrong = 0
    paths = sorted(folder.glob("*.metal"))
    for i in range(0, len(paths), BATCH):
        part = paths[i : i + BATCH]
        try:
            spaces.check(spaces.together([path.read_text() for path in part]))
        except CompileError:  # one of them is at fault
            wrong += sum(_space(path) for path in part)
    print(f"address spaces of {len(paths)} texts looked at by {spaces.clang()}: {wrong} wrong")
    return 1 if wrong or not paths else 0


def _space(path: Path) -> bool:
    """Whether something is wrong with one text, which is told."""
    try:
        spaces.check(path.read_text())
    except CompileError as error:
        print(f"{path.name}: {error}")
        return True
    return False


def _cubins(asked: argparse.Namespace) -> int:
    """Each text for each architecture, with the worst numbers."""
    wrong = 0
    architectures, options = asked.arch or ptxas.ARCHITECTURES, asked.option
    texts = ptxas.texts(asked.folder)
    for architecture in architectures:
        made: list[tuple[str, ptxas.Resources]] = []
        for problem, kernels in _compiled(texts, architecture, options):
            if problem:
                wrong += 1
                print(problem)
            made += kernels
        tiled = [kernel for kernel in made if kernel[1].shared]
        for kernel, numbers in made:
            bad = numbers.spills and (numbers.shared or not asked.tiled)
            if bad or numbers.shared > SHARED_BYTES:
                wrong += 1
                print(f"{kernel} for {architecture}: {numbers}")
        spilling = [kernel for kernel, numbers in made if numbers.spills]
        print(f"{architecture}: {len(made)} kernels, {_most(made)}; {_named(spilling)} spill")
        print(f"{architecture}: {len(tiled)} of them with shared memory, {_most(tiled)}")
    print(f"{len(texts)} texts, {len(architectures)} architectures: {wrong} wrong")
    return 1 if wrong or not texts else 0


def _compiled(
    texts: dict[str, str], architecture: str, options: Sequence[str]
) -> Iterator[tuple[str, list[tuple[str, ptxas.Resources]]]]:
    """What is wrong with a text, or nothing, and kernels; many texts at a time."""
    names = list(texts)
    parts = [names[i : i + BATCH] for i in range(0, len(names), BATCH)]

    def batch(part: list[str]) -> list[dict[str, ptxas.Resources]] | None:
        try:
            return ptxas.batched([texts[name] for name in part], architecture, options)
        except CompileError:
            return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part, found in zip(parts, pool.map(batch, parts), strict=True):
            if found is not None:
                yield "", [kernel for kernels in found for kernel in kernels.items()]
                continue
            for name in part:  # one of them is at fault
                yield _alone(name, texts[name], architecture, options)


def _alone(
    name: str, text: str, architecture: str, options: Sequence[str]
) -> tuple[str, list[tuple[str, ptxas.Resources]]]:
    try:
        (found,) = ptxas.batched([text], architecture, options)
    except CompileError as error:
        return f"{name} for {architecture}: {error}", []
    return "", list(found.items())


def _most(made: Sequence[tuple[str, ptxas.Resources]]) -> str:
    registers = max((numbers.registers for _, numbers in made), default=0)
    shared = max((numbers.shared for _, numbers in made), default=0)
    return f"at most {registers} registers, {shared} bytes of shared memory"


def _named(names: Sequence[str]) -> str:
    """How many, and which."""
    return f"{len(names)} ({', '.join(names)})" if names else "0"


if __name__ == "__main__":
    sys.exit(main())
