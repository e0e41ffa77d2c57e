"""MNIST: found, downloaded from a loopback server, checked, and never half-written."""

from __future__ import annotations

import functools
import gzip
import http.server
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from coregrad import dtypes
from coregrad.errors import DataError
from coregrad.nn import datasets

FILES = Path(__file__).resolve().parents[2] / "examples" / "data" / "mnist"
NAMES = [file.name for file in datasets.MNIST]
IMAGES, LABELS = NAMES[2], NAMES[3]  # the small ones, of the test set


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without a word, and counts what it was asked for."""

    asked: list[str] = []  # noqa: RUF012 (reset by the fixture)

    def log_message(self, *args):
        pass

    def do_GET(self):
        Quiet.asked.append(self.path)
        super().do_GET()


class Cut(Quiet):
    """Promises the whole file and breaks off in the middle."""

    def copyfile(self, source, outputfile):
        outputfile.write(source.read(1000))


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Serve a folder at COREGRAD_MNIST_URL, datasets being kept in a folder of this test."""
    servers = []

    def start(folder, handler=Quiet):
        Quiet.asked = []
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
        )
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("COREGRAD_MNIST_URL", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("COREGRAD_DATA", str(tmp_path / "kept"))
        return tmp_path / "kept" / "mnist"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_files_of_the_repository_are_the_original_ones():
    x_train, y_train, x_test, y_test = datasets.mnist(FILES)
    assert [t.shape for t in (x_train, y_train, x_test, y_test)] == [
        (60000, 1, 28, 28),
        (60000,),
        (10000, 1, 28, 28),
        (10000,),
    ]
    assert {t.dtype for t in (x_train, y_train, x_test, y_test)} == {dtypes.uint8}
    assert y_test.numpy()[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.bincount(y_train.numpy()).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert x_test.numpy().mean() == pytest.approx(33.791, abs=1e-3)


def test_missing_files_are_downloaded_once_and_kept(serve):
    kept = serve(FILES)
    assert datasets.mnist()[3].shape == (10000,)
    assert sorted(p.name for p in kept.iterdir()) == sorted(NAMES)
    assert len(Quiet.asked) == 4
    datasets.mnist()
    assert len(Quiet.asked) == 4
    (kept / LABELS).unlink()
    datasets.mnist()
    assert Quiet.asked[4:] == [f"/{LABELS}"]


def test_an_argument_wins_and_never_downloads(serve, tmp_path):
    serve(FILES)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match=r"train-images.*missing.*without a folder"):
        datasets.mnist(empty)
    assert Quiet.asked == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[:1000], "ends early"),
        (lambda data: data[:-4], "ends early"),
        (lambda data: b"<html>not found</html>", "no intact gzip file"),
        (lambda data: b"", "ends early"),
        (lambda data: gzip.compress(b"\0" * 10_008), "SHA-256"),
        (lambda data: gzip.compress(b"\0" * 5_000_000), "more than 10008 bytes"),
        (lambda data: data[:2000] + bytes([data[2000] ^ 1]) + data[2001:], "mnist"),
    ],
    ids=["cut", "cut in the checksum", "a web page", "empty", "other bytes", "a bomb", "one bit"],
)
def test_a_damaged_file_is_named_and_nothing_is_kept(serve, tmp_path, spoil, message):
    good = (FILES / LABELS).read_bytes()
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    file = datasets.MNIST[3]
    (spoiled / LABELS).write_bytes(spoil(good))
    with pytest.raises(DataError, match=message) as caught:
        datasets._read_idx(spoiled, file)
    assert str(spoiled / LABELS) in str(caught.value)
    assert "delete it" in str(caught.value)
    kept = serve(spoiled)
    with pytest.raises(DataError, match=message):
        datasets._download(kept, file)
    assert not kept.exists() or list(kept.iterdir()) == []


def test_a_connection_that_breaks_leaves_nothing_behind(serve):
    kept = serve(FILES, Cut)
    with pytest.raises(DataError, match=r"cannot download.*COREGRAD_DATA"):
        datasets._download(kept, datasets.MNIST[2])
    assert not kept.exists() or list(kept.iterdir()) == []


def test_a_server_without_the_file_is_named(serve, tmp_path):
    empty = tmp_path / "nothing"
    empty.mkdir()
    kept = serve(empty)
    with pytest.raises(DataError, match=r"http://127.*404"):
        datasets._download(kept, datasets.MNIST[3])


def test_a_folder_that_cannot_be_made_is_an_error(serve, monkeypatch, tmp_path):
    serve(FILES)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        datasets._download(tmp_path / "file" / "mnist", datasets.MNIST[3])


def test_a_leftover_of_an_interrupted_download_is_not_taken_for_the_file(serve, tmp_path):
    kept = serve(FILES)
    kept.mkdir(parents=True)
    (kept / (LABELS + "abc.part")).write_bytes(b"half")
    shutil.copy(FILES / IMAGES, kept)
    datasets._fetch_missing(kept)
    assert (kept / LABELS).read_bytes() == (FILES / LABELS).read_bytes()


def test_the_user_cache_is_the_platforms(monkeypatch):
    monkeypatch.delenv("COREGRAD_DATA", raising=False)
    monkeypatch.setattr(datasets.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("some") / "cache"))
    assert datasets._default_folder() == Path("some") / "cache" / "coregrad" / "data"
    monkeypatch.setattr(datasets.sys, "platform", "darwin")
    assert datasets._default_folder().parts[-4:] == ("Library", "Caches", "coregrad", "data")
    monkeypatch.setattr(datasets.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(Path("local")))
    assert datasets._default_folder() == Path("local") / "coregrad" / "data"
