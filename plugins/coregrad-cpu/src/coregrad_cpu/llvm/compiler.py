"""IR text to machine code: optimised lightly, compiled once, kept in memory and on disk.

It knows no kernel language and no buffers.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coregrad import config
from coregrad.binaries import Binaries
from coregrad.errors import CompileError
from coregrad_cpu.llvm import pieces, target

PASSES = "2"  # part of an object's key: raise it when the passes change
# Library functions that code may call and that an executable need not export.
LIBRARY = ("fmod", "fmodf", "sin", "cos", "memset", "memcpy", "memmove")


def cache_folder() -> Path | None:
    """Where compiled kernels are kept, if anywhere."""
    return config.cache_folder("cpu")


class Compiler:
    """Compiles texts for this machine.

    ``counts`` tells how often: memory, disk, compiled; damaged, unwritable.
    """

    def __init__(self, folder: Path | None) -> None:
        llvm = target.binding()
        self.reset_lock()
        self._loaded: set[str] = set()
        self._objects: list[Any] = []
        host = llvm.Target.from_default_triple()
        self._machine = self._new_machine(host)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._new_machine(host))
        about = (
            PASSES,
            ".".join(map(str, llvm.llvm_version_info)),
            llvm.get_default_triple(),
            target.cpu(),
            target.feature_text(),
        )
        self.version = "/".join(about)
        self._binaries = Binaries(folder, self.version)
        self.counts = self._binaries.counts
        _offer_library_functions(llvm)

    def reset_lock(self) -> None:
        """A new lock: in a forked child the old one may be held by a thread that is not there."""
        self._lock = threading.Lock()

    def _new_machine(self, host: Any) -> Any:
        return host.create_target_machine(
            cpu=target.cpu(),
            features=target.feature_text(),
            opt=2,
            codemodel="jitdefault",
            jit=True,
        )

    def address(self, text: str, entry: str = "kernel") -> int:
        """The address of the function ``entry`` of the module ``text``."""
        rest, shared = pieces.cut(text, self.key)
        key = self.key(rest)  # which names the pieces: code on disk can ask for no others
        with self._lock:
            if key in self._loaded:
                self.counts["memory"] += 1
            else:
                self._load_pieces(shared)
                self._load(self._object(rest, key))
                self._loaded.add(key)
            address: int = self._engine.get_function_address(_symbol(entry, key))
        if not address:
            raise CompileError(f"cpu: the compiled program has no function {entry}")
        return address

    def _load_pieces(self, shared: Sequence[pieces.Piece]) -> None:
        """Load functions that other texts have too, where they are not there yet."""
        for piece in shared:
            if piece.name not in self._loaded:
                self._load(self._object(piece.text, self.key(piece.text), own_name=True))
                address = self._engine.get_function_address(piece.name)
                target.binding().add_symbol(piece.name, address)
                self._loaded.add(piece.name)

    def _object(self, text: str, key: str, own_name: bool = False) -> bytes:
        """The text's machine code, from disk if it is there."""
        code = self._binaries.read(key)
        if code is not None:
            self.counts["disk"] += 1
            return code
        code = self._compile(text, "" if own_name else key)
        self.counts["compiled"] += 1
        self._binaries.write(key, code)
        return code

    def knows(self, text: str) -> bool:
        """Whether the text's machine code is there already, in memory or on disk."""
        key = self.key(pieces.cut(text, self.key)[0])
        return key in self._loaded or self._binaries.has(key)

    def key(self, text: str) -> str:
        """What names a text's machine code: the text, the compiler's version and the processor."""
        return self._binaries.key(text)

    def assembly(self, text: str) -> str:
        """The machine code as text, for a reader."""
        written: str = self._machine.emit_assembly(self._optimise(text))
        return written

    def _compile(self, text: str, key: str) -> bytes:
        module = self._optimise(text)
        for function in module.functions:
            if key and not function.is_declaration and function.linkage.name == "external":
                function.name = _symbol(function.name, key)
        code: bytes = self._machine.emit_object(module)
        return code

    def _optimise(self, text: str) -> Any:
        llvm = target.binding()
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"cpu: LLVM refused the kernel: {error}\n{text}") from error
        builder = llvm.create_pass_builder(
            self._machine, llvm.create_pipeline_tuning_options(speed_level=1)
        )
        passes = llvm.create_new_function_pass_manager()
        # Vectors are explicit and loops are placed by the core, so all that is left to do is to put
        # variables into registers: instcombine, loop rotation or the whole of -O1 were measured to
        # give no faster kernels and to take up to twice as long.
        passes.add_sroa_pass()
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)
        return module

    def _load(self, code: bytes) -> None:
        loaded = target.binding().ObjectFileRef.from_data(code)
        self._objects.append(loaded)  # the engine reads it as long as the code runs
        self._engine.add_object_file(loaded)
        self._engine.finalize_object()


def _symbol(name: str, key: str) -> str:
    """A function's name in the process: all objects share one name space."""
    return f"{name}_{key}"


def _offer_library_functions(llvm: Any) -> None:
    """Tell the linker where library functions are, as not every platform exports them."""
    windows = sys.platform == "win32"
    library = ctypes.CDLL("ucrtbase" if windows else ctypes.util.find_library("m"))
    found = {name: getattr(library, name) for name in LIBRARY if hasattr(library, name)}
    if windows:  # code for Windows refers to a stack probe and to a marker of its linker
        found["__chkstk"] = ctypes.CDLL("ntdll").__chkstk
        found["_fltused"] = found["fmod"]
    for name, function in found.items():
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
