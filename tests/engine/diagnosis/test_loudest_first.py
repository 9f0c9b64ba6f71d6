"""What a cause was found on: what makes most of the noise stands first, whatever is furthest beyond its threshold."""

from builders.comparisons import facts, judged, layer


def order_of(*loudness: float | None, source: str = "weight_source") -> list[str]:
    """Subjects of a cause on layers whose weights make these shares of the noise, the ratio growing along them."""
    rows = [
        layer(f"layer{place}", ratio=64.0 + 16 * place, **{source: {"share": share}})
        for place, share in enumerate(loudness)
    ]
    (cause,) = (one for one in judged(facts(rows)).diagnosis.causes if one.cause == "weight-spread")
    assert [row.subject for row in cause.evidence] == list(cause.subjects)
    assert [each.float_name for each in cause.layers] == list(cause.subjects)
    return list(cause.subjects)


def test_the_loudest_comes_first() -> None:
    assert order_of(0.1, 0.6, 0.3) == ["layer1", "layer2", "layer0"]
    assert order_of(0.1, 0.6, 0.3, source="bias_source") == ["layer1", "layer2", "layer0"], "stored in the layer too"


def test_where_nothing_is_known_or_all_is_small_the_worst_fact_comes_first() -> None:
    assert order_of(None, None, None) == ["layer2", "layer1", "layer0"]
    assert order_of(0.01, -0.4, 0.005) == ["layer2", "layer1", "layer0"]
    assert order_of(0.2, None, 0.01) == ["layer0", "layer2", "layer1"]
