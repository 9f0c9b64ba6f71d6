"""How large a KL divergence is: held against those that llama.cpp publishes of its own types."""

from quantmedic.reports.text import number

#: Mean divergence from 16 bits over the tokens of WikiText-2, in nats, of Llama 3 8B in types of llama.cpp, those up to
#: Q2_K without an importance matrix. Source: tools/perplexity/README.md of llama.cpp, "LLaMA 3 8b Scoreboard".
PUBLISHED = (
    ("Q8_0", 0.001355),
    ("Q6_K", 0.005452),
    ("Q5_K_M", 0.010762),
    ("Q4_K_M", 0.031273),
    ("Q3_K_M", 0.101913),
    ("Q2_K", 0.445132),
    ("IQ1_S", 2.254554),
)
_WHERE = "in llama.cpp's table"


def published_text(divergence: float) -> str:
    """Between which published types a mean divergence in nats lies, as a phrase."""
    finer = [each for each in PUBLISHED if each[1] <= divergence]
    coarser = [each for each in PUBLISHED if each[1] > divergence]
    if not finer:
        return f"less than Llama 3 8B loses with {_type_text(coarser[0])} {_WHERE}"
    if not coarser:
        return f"no less than Llama 3 8B loses with {_type_text(finer[-1])} {_WHERE}"
    return f"what Llama 3 8B loses between {_type_text(finer[-1])} and {_type_text(coarser[0])} {_WHERE}"


def _type_text(published: tuple[str, float]) -> str:
    return f"{published[0]} ({number(published[1], 2)})"
