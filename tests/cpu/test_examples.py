"""The examples are programs that reach their number, or exit with an error."""

import subprocess
import sys
from pathlib import Path

import pytest

from coregrad import config, plugins
from coregrad.errors import BackendUnavailable

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def cpu() -> None:
    """These train for real: the reference device would take hours."""
    try:
        plugins.open_device("cpu")
    except BackendUnavailable as error:
        if "cpu" in config.get("COREGRAD_REQUIRE").split(","):
            raise
        pytest.skip(str(error))


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_micrograd_finds_seven_and_a_slope_of_two_both_ways() -> None:
    assert "7" in run("micrograd.py")


def test_a_bare_class_of_two_matrices_learns_mnist() -> None:
    assert "accuracy" in run("linear_net.py")


@pytest.mark.slow
def test_the_perceptron_reaches_97_percent_in_five_epochs() -> None:
    assert "accuracy" in run("mnist_mlp.py")


@pytest.mark.slow
def test_the_convolutional_network_reaches_98_percent_in_70_steps() -> None:
    out = run("beautiful_mnist.py")
    assert "threads" in out
    assert "test accuracy 98" in out


def test_a_target_that_is_missed_is_an_error() -> None:
    missed = subprocess.run(
        [sys.executable, str(EXAMPLES / "beautiful_mnist.py"), "--steps", "1"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert missed.returncode == 1, missed.stderr
