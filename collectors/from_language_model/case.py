"""What running both language models adds to the case of their checkpoints."""

from pathlib import Path

import torch

from quantmedic.collectors.data.progress import Announce, Progress, no_announcement, no_progress
from quantmedic.collectors.from_checkpoint.checkpoint_record import WEIGHTS_ALONE
from quantmedic.collectors.from_language_model.collect import run_language_models
from quantmedic.collectors.from_language_model.tokens import LENGTH, TokenSource, name_of_texts
from quantmedic.collectors.from_torch.devices import PROCESSOR, title_of, usable_device
from quantmedic.engine.case.language_facts import LanguageFacts
from quantmedic.engine.case.records import Case

_HOW = "both models were run with weights as float32 numbers, those of the quantized one dequantized"


def with_language(
    case: Case,
    paths: tuple[Path, Path],
    tokens: TokenSource,
    *,
    length: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    unfinished: Path | None = None,
    progress: Progress = no_progress,
    announce: Announce = no_announcement,
) -> Case:
    """The case with what both models predict of the texts.

    Args:
        case: Of the two checkpoints.
        paths: Their float and their quantized folder.
        tokens: Texts or token ids; see ``read_texts``.
        length: Tokens that are used of each text; 512 by default.
        threads: Processor threads of torch.
        device: Where both models run, by its name in torch; the processor by default.
        unfinished: See ``run_language_models``.
        progress: Called after every block.
        announce: See ``run_language_models``.

    Raises:
        QuantmedicError: torch cannot use the device, the models cannot be built or run, or the texts cannot be read.
    """
    place = PROCESSOR if device is None else usable_device(device)
    notes: list[str] = []
    language, metric = run_language_models(
        *paths,
        tokens,
        length=length or LENGTH,
        threads=threads,
        device=place,
        unfinished=unfinished,
        release=case.record.quantmedic_version,
        progress=progress,
        announce=announce,
        note=notes.append,
    )
    record = case.record
    model = record.model.model_copy(update={"language": language, "metric": metric})
    notices = (_how(language), *_where(place), *notes, *(own for own in record.notices if own != WEIGHTS_ALONE))
    run = {**record.run, "tokens": name_of_texts(tokens), "text_length": length or LENGTH}
    if device is not None:
        run["device"] = device
    return Case(record.model_copy(update={"model": model, "notices": notices, "run": run}), case.statistics)


def _where(device: torch.device) -> tuple[str, ...]:
    """On which device, unless it is the processor."""
    if device.type == "cpu":
        return ()
    return (f"both models were run on {title_of(device)}, whose results differ from a processor's in the last digits",)


def _how(language: LanguageFacts) -> str:
    """What was quantized while the models ran, and what was not."""
    done = {"inputs of layers": language.activations, "keys and values": language.cache}
    simulated = [f"{what} were quantized ({how})" for what, how in done.items() if how is not None]
    left = [f"{what} were not quantized" for what, how in done.items() if how is None]
    unknown = f"; not simulated: {language.not_simulated}" if language.not_simulated is not None else ""
    return f"{_HOW}: {', '.join([*simulated, *left])}{unknown}"
