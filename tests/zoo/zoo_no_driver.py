"""A backend whose driver is not installed."""

import acme_driver


class Backend:
    driver = acme_driver
