"""For all tests."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time, on however busy a machine; others with --hypothesis-profile=explore.
patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **patient)
settings.register_profile("repeat", derandomize=True, **patient)
settings.load_profile("repeat")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and then the Ctrl-C that tests send to this process reaches nobody.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A run sets up logging for its whole process, which the next test has not asked for."""
    loggers = [logging.getLogger(name) for name in (None, "mappa_train", "mappa_envs")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
    logging.captureWarnings(False)
