"""Searches: what is changed at which places of a network, and what the network gives then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from quantmedic.api.arguments import SearchArguments
from quantmedic.api.calibration_search import search_calibrations
from quantmedic.api.grouping import group_search_arguments
from quantmedic.api.layer_searches import debug_pair, measure_sensitivity, search_fallback
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.options import SEARCHES, TAKEN, ModelSource, SearchOptions, What
from quantmedic.collectors.data.progress import Progress
from quantmedic.engine.contract.searches import DebuggerRecord, SearchRecord
from quantmedic.reports.machines.spreadsheets import debugger_csv
from quantmedic.reports.search_formats import search_files
from quantmedic.reports.write import Written, place


def search(
    what: What,
    float_model: ModelSource,
    quantized_model: ModelSource | None = None,
    *,
    progress: Watching = True,
    **options: Unpack[SearchArguments],
) -> SearchRecord:
    """Change a network at one place after another, and measure what it gives then.

    Args:
        what: ``sensitivity`` turns simulated quantizers on and off, layer by layer. ``fallback`` finds a small set of
            layers that leave int8 so that a goal is met: in the simulated network on one half of the samples; it is
            checked on the other half with the quantized model itself, edited for real. ``calibrations`` builds settings
            of a toolchain, combinations of a calibration method with scales and zero points, each by running the text
            that is printed of it, and judges their models on all samples. ``debugger`` measures each quantized operator
            against its float twin, both fed with what the deployed model computed; every metric is averaged over the
            samples, those of layers and pairs without NaN.
        float_model: Path of the float ONNX or LiteRT model, or the float ``torch.nn.Module``; ``debugger`` takes files.
        quantized_model: Path of its quantized counterpart, or that module; none for ``calibrations``.
        validation: The samples that judge: ``.npz``, folder, ``module:function``, mapping or array.
        representative: Calibration data: what ``calibrations`` calibrates with, and what the others read where no
            evaluation data are given.
        samples: Samples at most: of ``sensitivity`` 64 by default, from all over the data set where its length is
            known; of one evaluation of ``fallback`` 64 to 256, by the size of the network; else all.
        progress: Called with a stage, what is done of it, and its number where known; see ``collect``.
        toolchain: Of ``fallback``, whose configuration is written; by default the one that the quantized model carries
            marks of. Of ``calibrations``, whose settings are searched (ort, litert, mct); by default the one that takes
            such models.
        **options: See ``quantmedic.api.options``.

    Returns:
        A record with all that tables, graphs and files show. After Ctrl-C, ``sensitivity`` gives the runs so far, and
        ``fallback`` the best set so far, ``interrupted`` and not checked.

    Raises:
        DataError: The data do not fit the model or are missing, there is not exactly one goal, a threshold is negative,
            or a function of yours fails.
        ModelError: A model cannot be read, simulated or run operator by operator, no layer is quantized, the two do not
            belong together, no toolchain can be run, or every setting failed.
        RuleError: No toolchain or method has that name.
        TypeError: There is no such search, or it takes no argument of such a name.
    """
    if what not in SEARCHES:
        raise TypeError(f"there is no search {what!r}: {', '.join(SEARCHES)}")
    for name in options.keys() - TAKEN[what]:
        raise TypeError(f"{what} takes no argument {name!r}")
    if quantized_model is None and what != "calibrations":
        raise TypeError(f"{what} compares a float and a quantized model: give both")
    given = group_search_arguments(options)
    with watching(progress) as told:
        return search_models(what, float_model, quantized_model, given, told)


def search_models(
    what: What, float_model: ModelSource, quantized_model: ModelSource, options: SearchOptions, progress: Progress
) -> SearchRecord:
    """``search`` with its options as one record; see there."""
    match what:
        case "sensitivity":
            return measure_sensitivity(float_model, quantized_model, options, progress)
        case "fallback":
            return search_fallback(float_model, quantized_model, options, progress)
        case "calibrations":
            return search_calibrations(float_model, options, progress)
        case "debugger":
            return debug_pair(float_model, quantized_model, options, progress)


def write_search(record: SearchRecord, folder: str | Path, formats: Sequence[str] | None = None) -> list[Written]:
    """Write what a search has found, and what is to be pasted, all files or none; returns path and bytes of each.

    Args:
        record: What was found.
        folder: Where to.
        formats: ``text``, ``markdown``, ``html``, ``json``, ``csv`` or ``svg``; those that suit the search by default.

    Raises:
        OutputError: The folder cannot be written.
        QuantmedicError: There is no such format.
    """
    return list(place(search_files(record, formats), Path(folder)))


def write_layers(record: DebuggerRecord, path: str | Path) -> Written:
    """Write the debugger's table as CSV, whole or not at all: LiteRT's columns, then range and error in steps.

    Raises:
        OutputError: The file cannot be written.
    """
    target = Path(path)
    (written,) = place({target.name: debugger_csv(record).encode()}, target.parent)
    return written
