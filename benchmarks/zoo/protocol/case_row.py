"""A case and the answer to it as a row."""

from ..cases import Built
from ..fault import FAULTS
from ..paste_table import outcome
from ..verdict import Answer
from .layers import layer_names
from .row import Row


def row_of(built: Built, answer: Answer) -> Row:
    """The case in short."""
    faults = [FAULTS[kind] for kind in built.spec.kinds]
    before = built.before
    return Row(
        name=built.spec.name,
        network=built.spec.network,
        group=built.spec.group,
        family=built.spec.family,
        said=answer.said,
        expected=built.spec.expected,
        also=tuple(name for names in built.spec.also for name in names),
        places=layer_names(built).meant(built.places) if built.places else (),
        hurts=before is not None and before.hurts,
        proven_drop=before is not None and bool(before.proven_drop),
        harms=bool(faults) and all(fault.harms for fault in faults),
        gain_db=built.gain_db,
        strength=built.strength,
        recipe=built.recipe,
        peer=answer.peer,
        pasted=outcome(built, answer.pasted) if answer.pasted is not None else "",
        fixed=outcome(built, answer.fixed) if answer.fixed is not None else "",
    )
