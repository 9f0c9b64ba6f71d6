"""What packages log while ``transformers`` imports them, of parts of themselves that nothing here uses."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

#: Beginnings or parts of messages by the logger that writes them: kernels of torchao that were built for other machines
#: or other releases of torch, and its use of a call that torch will drop. All else that is logged is shown.
_EXPECTED = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions "),
    "torch.utils._pytree": ("Calling register_constant() on Enum subclasses is deprecated",),
}


@contextmanager
def without_import_noise() -> Iterator[None]:
    """Keep the expected messages from the terminal of somebody who asked for neither package."""
    loggers = [logging.getLogger(name) for name in _EXPECTED]
    for logger in loggers:
        logger.addFilter(_is_of_use)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """Errors always are."""
    known = _EXPECTED.get(record.name, ())
    return record.levelno > logging.WARNING or not any(words in record.getMessage() for words in known)
