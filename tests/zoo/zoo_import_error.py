"""A plugin whose light module needs something that is not installed."""

import a_driver_that_is_not_installed


def info() -> object:
    return a_driver_that_is_not_installed
