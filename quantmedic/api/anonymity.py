"""Cases without names, paths, texts and pictures, for others to judge."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from quantmedic.api.cases import load_case
from quantmedic.api.rulebase import load_rulebase, rule_folder
from quantmedic.collectors.case_file.anonymous import PublicWords, anonymize_case
from quantmedic.engine.case.facts import SCOPES, fact_paths
from quantmedic.engine.case.records import Case
from quantmedic.engine.metrics.kinds import KINDS

#: Words of quantmedic itself, and kinds of processors.
_OWN = "Input exact fast static imported float integer simulated deployed cpu cuda mps x86 64 amd64 AMD64 aarch64 arm64"


def anonymize(case: Case | str | Path) -> Case:
    """A case that can be shared: judged as before, without names, paths, texts and pictures.

    Names of layers, tensors, files and outputs become hashes, the same name the same hash in all cases of one float
    model. Operator types of ONNX and onnxruntime, options that are numbers, and all statistics stay, but for
    thumbnails and the histograms of the inputs.

    Args:
        case: A case, or the path of one, or of the folder of a report.

    Raises:
        CaseError: The file cannot be read.
    """
    return anonymize_case(load_case(case) if isinstance(case, str | Path) else case, public_words())


@cache
def public_words() -> PublicWords:
    """What may stay: words of the built-in rules, of the facts, and of ONNX."""
    titles = frozenset(remedy.title for remedy in load_rulebase().remedies.values())
    return PublicWords(" ".join(_texts()), titles)


def _texts() -> Iterator[str]:
    from quantmedic.collectors.from_onnx.vocabulary import operator_words  # here, because importing onnx takes long

    yield _OWN
    yield from operator_words()
    yield " ".join(KINDS)
    for scope in SCOPES:
        yield " ".join(about.description or "" for about in fact_paths(scope).values())
    yield from (path.read_text(encoding="utf-8") for path in sorted(rule_folder().rglob("*.yaml")))
