"""Find, choose, open and describe backends; it never knows what one does.

Backends announce themselves through the entry-point group ``coregrad.backends``. Nothing of a
plugin is imported until somebody needs it, and a plugin that nobody asked for never raises: its
failure is kept as a reason, which is raised when its device *is* asked for.

Each plugin is in one state: *found* (installed, not tried), *blocked* (by COREGRAD_PLUGINS),
*conflict* (its name belongs to another distribution), *incompatible* (another contract version),
*unavailable* (driver or hardware is missing), *failed* (it is broken), or *active*.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from coregrad import config, dtypes
from coregrad.errors import (
    BackendUnavailable,
    ContractError,
    DeviceError,
    OutOfMemory,
    SettingError,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint
    from types import ModuleType

    from coregrad.hookspecs import Backend, BackendInfo, Device, Hooks

__all__ = [
    "Active",
    "Row",
    "canonical",
    "default",
    "describe",
    "named_only",
    "offers",
    "open_device",
    "probe_default",
    "register",
    "try_out",
    "unregister",
]

GROUP = "coregrad.backends"
IN_PROCESS = "(in process)"
OFFICIAL = {
    "cpu": "coregrad-cpu",
    "numpy": "coregrad-cpu",
    "opencl": "coregrad-opencl",
    "cuda": "coregrad-cuda",
    "metal": "coregrad-metal",
}
KINDS = (BackendUnavailable, ContractError, OutOfMemory, DeviceError)  # what opening raises
UNREADABLE = "-"  # the name in the row of a distribution whose entry points cannot be read
NO_BACKEND = "no backend is installed; run: pip install coregrad-cpu"
DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::([0-9]{1,4}))?")
PROBE_SECONDS = 20.0  # opening a GPU's driver takes up to a few seconds; beyond this it hangs
PROBE = "coregrad.plugins:answer_probe"


@dataclass(frozen=True)
class Active:
    """One opened device, with the backend that made it and its frozen hooks."""

    name: str
    info: BackendInfo
    backend: Backend
    hooks: Hooks
    device: Device


@dataclass(frozen=True)
class Row:
    """One plugin as ``coregrad devices`` shows it."""

    name: str
    distribution: str
    version: str
    state: str
    reason: str = ""
    rank: str = ""
    contract: str = ""
    summary: str = ""
    devices: int = 0  # how many there are; known once the driver was asked, as is what it lacks
    lacks: str = ""
    title: str = ""  # of the first device, in its driver's words

    @property
    def words(self) -> str:
        """Why it does not work, or what it is."""
        if self.reason:
            return self.reason
        count = f"{self.devices} devices" if self.devices > 1 else ""
        lacks = f"no {self.lacks}" if self.lacks else ""
        return "; ".join(word for word in (self.summary, self.title, count, lacks) if word)


@dataclass(frozen=True)
class Failure:
    """Why a plugin cannot be used, and the class of the exception that says so."""

    state: str
    reason: str
    error: type[DeviceError] = BackendUnavailable
    cause: BaseException | None = None


@dataclass(eq=False)
class Plugin:
    """One offer of a device: an entry point, or an info registered in this process."""

    name: str
    distribution: str
    version: str
    load: Callable[[], object]
    state: str = "found"
    failure: Failure | None = None
    info: BackendInfo | None = None
    activated: tuple[Backend, Hooks] | None = None
    measured: str = ""  # the rank that the driver told, once it was asked

    @property
    def rank(self) -> str:
        """Its place in the automatic choice, as far as it is known."""
        return self.measured or (self.info.rank if self.info is not None else "")

    @property
    def title(self) -> str:
        """The plugin as its errors name it."""
        return f"{self.name} (plugin {' '.join((self.distribution, self.version)).strip()})"

    @property
    def official(self) -> bool:
        """Whether the name belongs to the distribution that offers it."""
        return OFFICIAL.get(self.name) == self.distribution

    @property
    def in_process(self) -> bool:
        """Whether `register` made it: then it has no version."""
        return not self.version

    @property
    def refused(self) -> bool:
        """Whether its names alone keep it out; then nothing of it is ever imported."""
        return self.state in ("blocked", "conflict")

    def fail(self, failure: Failure) -> None:
        """Keep why this plugin cannot be used."""
        self.state, self.failure = failure.state, failure

    def succeed(self) -> None:
        """A device of this plugin is open."""
        self.state, self.failure = "active", None

    def raisable(self, failure: Failure) -> DeviceError:
        """A failure as an exception that names the plugin."""
        exception = failure.error(f"{self.title}: {failure.reason}")
        exception.__cause__ = failure.cause
        return exception

    def row(self) -> Row:
        """This plugin as a line of the table."""
        reason = self.failure.reason if self.failure is not None else ""
        row = Row(self.name, self.distribution, self.version, self.state, reason)
        if self.info is None:
            return row
        contract = ".".join(map(str, self.info.contract))
        return replace(row, rank=self.rank, contract=contract, summary=self.info.summary)


# The only late imports of the core. They keep `import coregrad` free of importlib.metadata
# (40 ms) and pluggy (20 ms), which a program needs only once it uses a device, and of subprocess.


def _distributions() -> Iterator[Distribution]:
    from importlib import metadata

    return iter(metadata.distributions())


def _activation() -> ModuleType:
    from coregrad import activation

    return activation


def _probe() -> ModuleType:
    from coregrad import probe

    return probe


def canonical(name: str) -> str:
    """The one spelling of a device's name: ``"CPU:0"`` is ``"cpu"``, ``"cuda:1"`` stays.

    Raises DeviceError, naming the choices, for a device that no installed plugin offers.

    >>> canonical("CPU:0")
    'cpu'
    """
    return _registry.canonical(name)


def default() -> str:
    """The device of tensors whose device nobody gave.

    COREGRAD_DEVICE decides, and fails loudly when it cannot be had; of a list the first available
    one is taken. Otherwise the best rank that works: gpu, cpu, software, reference. Only
    coregrad's own plugins, and others that COREGRAD_PLUGINS names, take part in that. A driver is
    asked only where its plugin could be the best, and only by this automatic choice.

    >>> default() in ("cpu", "numpy") or default().startswith(("cuda", "opencl", "metal"))
    True
    """
    return _registry.default()


def open_device(name: str) -> Active:
    """Open a device, or return it if this process has it open. Raises the reason if it cannot.

    >>> open_device("numpy:0").info.rank
    'reference'
    """
    return _registry.open(name)


def describe(probe: bool = False, question: str = PROBE) -> list[Row]:
    """Every plugin with its state and reason.

    With ``probe`` each device is opened, in a process of its own and with a time limit: a plugin
    that crashes or hangs becomes a row of the answer. ``question`` is the function that does it
    there, as ``"module:function"``; it calls `try_out` and answers with the row.
    """
    return _registry.describe(probe, question)


def probe_default() -> tuple[str, str]:
    """What `default` answers in a process of its own, and why; no name if there is no device."""
    found = _probe().ask("coregrad.plugins:answer_default", [], PROBE_SECONDS)
    return ("", found) if isinstance(found, str) else (found["name"], found["reason"])


def offers(name: str) -> list[str]:
    """The distributions that offer the device ``name`` and are not refused."""
    return [p.distribution for p in _registry.plugins if p.name == name and not p.refused]


def named_only() -> list[str]:
    """The devices that are installed, where none of them is taken without being named."""
    return _registry.named_only()


def register(info: BackendInfo, distribution: str = IN_PROCESS) -> None:
    """Offer a backend without packaging it. Raises DeviceError when the name is taken."""
    _registry.register(info, distribution)


def unregister(name: str) -> None:
    """Take back what `register` added."""
    _registry.unregister(name)


class Registry:
    """The plugins of one process; the module's functions speak to the one instance below."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plugins: list[Plugin] | None = None
        self._open: dict[str, Active] = {}
        self._canonical: dict[str, str] = {}
        self._default: dict[str, str] = {}

    def renew_lock(self) -> None:
        """For a forked process, in which the thread that holds the lock does not exist."""
        self._lock = threading.RLock()

    # --- finding ---

    @property
    def plugins(self) -> list[Plugin]:
        """All offers; installed ones are looked up once, at the first use."""
        with self._lock:
            if self._plugins is None:
                found = list(_scan())
                for plugin in found:
                    _judge(plugin, found)
                self._plugins = found
            return self._plugins

    def find(self, name: str) -> Plugin | None:
        """The offer that answers for ``name``: a usable one if there is any."""
        offers = [plugin for plugin in self.plugins if plugin.name == name]
        return min(offers, key=lambda p: (p.refused, not p.official), default=None)

    def register(self, info: BackendInfo, distribution: str) -> None:
        """See the module's function."""
        with self._lock:
            plugin = Plugin(info.name, _normal(distribution), "", lambda: info)
            taken = self.find(info.name)
            if taken is not None and not taken.refused:
                raise DeviceError(
                    f"register: {taken.title} already offers {info.name!r}; choose another name"
                )
            _judge(plugin, [*self.plugins, plugin])
            if plugin.failure is not None:
                raise plugin.raisable(plugin.failure)
            self.plugins.append(plugin)

    def unregister(self, name: str) -> None:
        """See the module's function."""
        with self._lock:
            if all(p.name != name or not p.in_process for p in self.plugins):
                raise DeviceError(f"unregister: {name!r} was not registered in this process")
            self._plugins = [p for p in self.plugins if p.name != name or not p.in_process]
            for table in (self._open, self._canonical):
                for key in [key for key in table if key.partition(":")[0].lower() == name]:
                    del table[key]
            self._default.clear()

    # --- names ---

    def canonical(self, name: str) -> str:
        """See the module's function."""
        known = self._canonical.get(name) if isinstance(name, str) else None
        if known is None:
            base, index = _split(name)
            if self.find(base) is None:
                raise self._unknown(name, base)
            known = base if index == 0 else f"{base}:{index}"
            self._canonical[name] = known
        return known

    def _unknown(self, name: str, base: str) -> DeviceError:
        if base in OFFICIAL:
            return BackendUnavailable(
                f"device {name!r}: its plugin is not installed; run: pip install {OFFICIAL[base]}"
            )
        names = sorted({plugin.name for plugin in self.plugins if plugin.state != "blocked"})
        if not names:
            return BackendUnavailable(f"device {name!r}: {NO_BACKEND}")
        return DeviceError(f"device {name!r} is unknown; choose one of: {', '.join(names)}")

    # --- opening ---

    def open(self, name: str) -> Active:
        """See the module's function."""
        active = self._open.get(name)
        if active is not None:
            return active
        with self._lock:
            key = self.canonical(name)
            if key not in self._open:
                self._open[key] = self._open_new(key)
            return self._open[key]

    def _open_new(self, key: str) -> Active:
        base, index = _split(key)
        plugin = self.find(base)
        assert plugin is not None  # canonical() has found it
        backend, hooks = _activate(plugin)
        assert plugin.info is not None
        with _blamed(plugin):
            device = _open_checked(backend, key, index)
        plugin.succeed()
        return Active(key, plugin.info, backend, hooks, device)

    # --- choosing ---

    def default(self) -> str:
        """See the module's function."""
        wish = config.get("COREGRAD_DEVICE")
        chosen = self._default.get(wish)
        if chosen is None:
            with self._lock:
                chosen = self._wished(wish) if wish.strip() else self._best()
                self._default[wish] = chosen
        return chosen

    def _wished(self, wish: str) -> str:
        names = [name.strip() for name in wish.split(",") if name.strip()]
        if len(names) == 1:
            return self.open(names[0]).name
        reasons = []
        for name in names:
            try:
                return self.open(name).name
            except DeviceError as error:
                reasons.append(f"\n  - {error}")
        raise BackendUnavailable(f"COREGRAD_DEVICE={wish}: none is available{''.join(reasons)}")

    def _best(self) -> str:
        """The best rank that works. Says so in one line if a better one is there but fails."""
        waiting = [p for p in self.plugins if _eligible(p)]
        failed = []
        while waiting:
            plugin = min(waiting, key=_preference)
            try:
                if _measure(plugin):
                    continue  # less than its info promised: another one may be better
                name = self.open(plugin.name).name
            except DeviceError as error:
                failed.append(str(error))
                waiting.remove(plugin)
                continue
            if failed:
                _say_fallback(name, failed[0])
            return name
        if not failed:
            raise BackendUnavailable(_not_chosen(self.named_only()) or NO_BACKEND)
        raise BackendUnavailable("\n  - ".join(["no backend works:", *failed]))

    def named_only(self) -> list[str]:
        """See the module's function."""
        if any(_eligible(plugin) for plugin in self.plugins):
            return []
        usable = (p.name for p in self.plugins if not p.refused and p.name != UNREADABLE)
        return sorted(set(usable))

    # --- describing ---

    def describe(self, probe: bool, question: str) -> list[Row]:
        """See the module's function."""
        if not probe:
            for plugin in self.plugins:
                _load_info(plugin)
            return [plugin.row() for plugin in self.plugins]
        return [self._probe(plugin, question) for plugin in self.plugins]

    def _probe(self, plugin: Plugin, question: str) -> Row:
        if plugin.refused or plugin.name == UNREADABLE:
            return plugin.row()
        if plugin.in_process:  # another process would not find it, and its code runs here anyway
            try:
                check_memory(self.open(plugin.name))
            except DeviceError as error:
                return replace(plugin.row(), state="failed", reason=str(error))
            return plugin.row()
        return _probe_apart(plugin, question)


def _scan() -> Iterator[Plugin]:
    """The installed offers. The first distribution of a name on ``sys.path`` is the one in use."""
    seen = set()
    for distribution in _distributions():
        try:
            points = [e for e in distribution.entry_points if e.group == GROUP]
        except Exception as error:  # one broken text file must not hide every other plugin
            plugin = Plugin(UNREADABLE, _name_of(distribution), "", lambda: None)
            plugin.fail(Failure("failed", f"its entry_points.txt cannot be read: {_words(error)}"))
            yield plugin
            continue
        if not points:
            continue
        name = _name_of(distribution)
        if name in seen:
            continue
        seen.add(name)
        for point in points:
            version = _version_of(distribution)
            yield Plugin(point.name, name, version, partial(_call_entry_point, point))


def _call_entry_point(point: EntryPoint) -> object:
    return point.load()()


def _name_of(distribution: Distribution) -> str:
    name = distribution.metadata["Name"]
    return _normal(name) if name else "(unnamed distribution)"


def _version_of(distribution: Distribution) -> str:
    return distribution.metadata["Version"] or "?"


def _normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return name if name == IN_PROCESS else re.sub(r"[-_.]+", "-", name).lower()


def _split(name: object) -> tuple[str, int]:
    match = DEVICE.fullmatch(name.lower()) if isinstance(name, str) else None
    if match is None:
        raise DeviceError(f"device {name!r}: not a name; write it like 'cpu', 'cuda' or 'cuda:1'")
    return match[1], int(match[2] or 0)


def _wishes() -> tuple[set[str], set[str]]:
    """The allowed and the denied names of COREGRAD_PLUGINS."""
    words = [word.strip().lower() for word in config.get("COREGRAD_PLUGINS").split(",")]
    allowed = {_normal(word) for word in words if word and not word.startswith("-")}
    return allowed, {_normal(word[1:]) for word in words if word.startswith("-")}


def _judge(plugin: Plugin, offers: list[Plugin]) -> None:
    """Refuse a plugin by its names alone, before anything of it is imported."""
    if plugin.name == UNREADABLE:
        return
    owner = OFFICIAL.get(plugin.name, plugin.distribution)
    rivals = [p for p in offers if p.name == plugin.name and not _blocked(p)]
    if _blocked(plugin):
        value = config.get("COREGRAD_PLUGINS")
        reason = f"COREGRAD_PLUGINS={value} keeps it out; unset it or add the name"
        plugin.fail(Failure("blocked", reason))
    elif owner != plugin.distribution:
        reason = (
            f"the name {plugin.name!r} belongs to {owner}, but {plugin.distribution} offers it; "
            f"uninstall {plugin.distribution}, and for the real one run: pip install {owner}"
        )
        plugin.fail(Failure("conflict", reason))
    elif plugin.name not in OFFICIAL and len(rivals) > 1:
        names = " and ".join(sorted(p.distribution for p in rivals))
        reason = (
            f"{names} both offer the device {plugin.name!r}; uninstall one, or keep one out with "
            "COREGRAD_PLUGINS=-DISTRIBUTION"
        )
        plugin.fail(Failure("conflict", reason))


def _blocked(plugin: Plugin) -> bool:
    allowed, denied = _wishes()
    names = {_normal(plugin.name), plugin.distribution}
    return bool(names & denied) or bool(allowed and not names & allowed)


def _eligible(plugin: Plugin) -> bool:
    """Whether the automatic choice may take it: installing a package must not change the device."""
    named = {_normal(plugin.name), plugin.distribution} & _wishes()[0]
    return not plugin.refused and (plugin.official or bool(named))


def _not_chosen(names: list[str]) -> str:
    """What to do where there are devices, and none that is taken without being named."""
    if not names:
        return ""
    are = "is" if len(names) == 1 else "are"
    return (
        f"no device was chosen: {', '.join(names)} {are} installed, but a plugin that is not "
        f"coregrad's own is used only where it is named; set COREGRAD_DEVICE={names[0]}, or run: "
        "pip install coregrad-cpu"
    )


def _preference(plugin: Plugin) -> tuple[int, str]:
    _load_info(plugin)
    ranks = _activation().RANKS
    if plugin.info is None:  # it will fail, and is worth a word if it was meant to be the best
        return (0, plugin.name)
    return (ranks.index(plugin.rank), plugin.name)


def _measure(plugin: Plugin) -> bool:
    """Let the backend's driver correct its rank, once; whether that has changed it."""
    backend, _ = _activate(plugin)
    assert plugin.info is not None
    ask = getattr(backend, "rank", None)
    if plugin.measured or ask is None:
        return False
    with _blamed(plugin):
        rank = ask()
        if rank not in _activation().RANKS:
            raise ContractError(f"rank() answered {rank!r}, which is no rank")
    plugin.measured = rank
    return plugin.measured != plugin.info.rank


def _load_info(plugin: Plugin) -> None:
    """Ask the plugin's light function what it is; a failure is kept."""
    if plugin.info is not None or plugin.state != "found":
        return
    activation = _activation()
    try:
        info = plugin.load()
    except (Exception, SystemExit) as error:
        plugin.fail(_diagnose(plugin, error))
        return
    problems = activation.check_info(info, plugin.name)
    if problems:
        plugin.fail(Failure("failed", "; ".join(problems), ContractError))
        return
    plugin.info = cast("BackendInfo", info)
    misfit = activation.check_version(info)
    if misfit:
        plugin.fail(Failure("incompatible", misfit, ContractError))


def _activate(plugin: Plugin) -> tuple[Backend, Hooks]:
    """The plugin's backend, checked and frozen; a failure is kept and raised every time."""
    _load_info(plugin)
    if plugin.activated is not None:
        return plugin.activated
    if plugin.failure is not None:
        raise plugin.raisable(plugin.failure)
    assert plugin.info is not None
    with _blamed(plugin):
        plugin.activated = _activation().load_backend(plugin.info)
    return plugin.activated


@contextmanager
def _blamed(plugin: Plugin) -> Iterator[None]:
    """An exception of the plugin's code is kept as its state, and raised in words of ours."""
    try:
        yield
    except SettingError:
        raise  # the user's mistake, not the plugin's
    except (Exception, SystemExit) as error:
        failure = _diagnose(plugin, error)
        if plugin.state != "active":  # cuda:9 does not exist: that is no news of cuda:0
            plugin.fail(failure)
        raise plugin.raisable(failure) from error


def _open_checked(backend: Backend, key: str, index: int) -> Device:
    count = backend.device_count()
    if index >= count:
        raise BackendUnavailable(f"{key} does not exist; the backend has {count} device(s)")
    device = backend.open_device(index)
    problems = _activation().check_device(device)
    if problems:
        title = f"{type(device).__name__} breaks the contract:"
        raise ContractError("\n  - ".join([title, *problems]))
    return device


def _diagnose(plugin: Plugin, error: BaseException) -> Failure:
    """An exception of a plugin's code as the plugin's state and reason."""
    if isinstance(error, DeviceError):
        state = "unavailable" if isinstance(error, BackendUnavailable) else "failed"
        kind = next(k for k in KINDS if isinstance(error, k))
        failure = Failure(state, str(error), kind, error)
    else:
        state = "unavailable" if isinstance(error, (ImportError, OSError)) else "failed"
        failure = Failure(state, _words(error), BackendUnavailable, error)
    needs = plugin.info.needs if plugin.info is not None else ""
    if failure.state == "unavailable" and needs:
        return replace(failure, reason=f"{failure.reason}; needs {needs}")
    return failure


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _say_fallback(name: str, failure: str) -> None:
    """One line: what is used, what could not be and how to get it, how to be rid of the line."""
    reason = failure.partition("\n")[0].rstrip(":")
    sys.stderr.write(
        f"coregrad: using {name}, as {reason} (more: python -m coregrad doctor; "
        f"COREGRAD_DEVICE={name} silences this)\n"
    )


def check_memory(active: Active) -> None:
    """Send bytes to the device and back; raises DeviceError when they change."""
    sent = bytes(range(256))
    back = bytearray(len(sent))
    buffer = active.device.allocate(len(sent))
    active.device.copy_in(buffer, memoryview(sent))
    active.device.copy_out(buffer, memoryview(back))
    active.device.free(buffer)
    if back != sent:
        raise DeviceError(f"{active.name}: bytes copied to the device and back have changed")


def _probe_apart(plugin: Plugin, question: str) -> Row:
    found = _probe().ask(question, [plugin.name, plugin.distribution], PROBE_SECONDS)
    if isinstance(found, dict):
        return Row(**found)
    reason = f"{found}; keep it out with COREGRAD_PLUGINS=-{plugin.name}"
    return replace(plugin.row(), state="failed", reason=reason)


def answer_probe(name: str, distribution: str) -> None:
    """The other process's side of a probe: open the device, try its memory, answer with the row."""
    _probe().answer(asdict(try_out(name, distribution)))


def answer_default() -> None:
    """The other process's side of `probe_default`."""
    wish = config.get("COREGRAD_DEVICE").strip()
    try:
        name = _registry.default()
    except DeviceError as error:
        _probe().answer({"name": "", "reason": str(error)})
        return
    reason = f"COREGRAD_DEVICE={wish}" if wish else f"the best rank that works: {_rank(name)}"
    _probe().answer({"name": name, "reason": reason})


def _rank(name: str) -> str:
    plugin = _registry.find(_split(name)[0])
    return plugin.rank if plugin is not None else ""


def try_out(name: str, distribution: str) -> Row:
    """Open the device of one plugin in this process and try its memory; the row says how it went.

    A plugin that crashes takes the process with it: call it in a process of its own.
    """
    plugin = next(p for p in _registry.plugins if (p.name, p.distribution) == (name, distribution))
    try:
        active = _registry.open(name)
        _measure(plugin)
        check_memory(active)
        count = active.backend.device_count()
    except Exception as error:
        if plugin.state in ("found", "active"):
            plugin.fail(Failure("failed", _words(error)))
        return plugin.row()
    missing = [d.name for d in dtypes.ALL if d not in active.device.limits.dtypes]
    title = getattr(active.device, "title", "")
    return replace(plugin.row(), devices=count, lacks=", ".join(missing), title=title)


_registry = Registry()


def _after_fork() -> None:
    _registry.renew_lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
