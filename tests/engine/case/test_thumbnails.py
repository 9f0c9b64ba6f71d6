"""Which samples of a data set are kept: the same whatever the order, and however it is cut into shards."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quantmedic.engine.case.thumbnails import THUMBNAIL_DTYPE, TYPICAL, Thumbnails, places_to_keep


def thumbnails(rows: list[tuple[int, float, float, int]]) -> Thumbnails:
    """A set that kept what these samples would leave; the pixels tell which sample they are of."""
    table = np.array([(*row, 1.0) for row in rows], THUMBNAIL_DTYPE)
    places = places_to_keep(table)
    pixels = [np.full((1, 1, 1), table["hash"][i], np.float16) for i in places]
    return Thumbnails(table[places], pixels)


# Equal content has equal figures: they are functions of the hash.
samples = st.lists(
    st.integers(0, 60).map(lambda h: (h, float(h * 7 % 11), float(h * 5 % 13) / 13, 3 if h % 17 == 5 else 0)),
    max_size=40,
)


@given(samples, st.integers(0, 40))
def test_shards_keep_what_one_pass_keeps(rows: list[tuple[int, float, float, int]], cut: int) -> None:
    whole, shards = thumbnails(rows), thumbnails(rows[:cut]).merge(thumbnails(rows[cut:]))
    assert np.array_equal(whole.table, shards.table)
    assert [p.tolist() for p in whole.pixels] == [p.tolist() for p in shards.pixels]
    assert len(whole.table) <= TYPICAL + 2
    assert [float(p.item()) for p in whole.pixels] == whole.table["hash"].tolist()


@given(samples.filter(bool))
def test_the_faintest_and_the_most_spoiled_are_found(rows: list[tuple[int, float, float, int]]) -> None:
    found = thumbnails(rows)
    finite = [row for row in rows if not row[3]]
    varied = [row for row in rows if row[3] or row[1] > 0]
    assert (found.faintest is None) == (not finite)
    if finite:
        assert found.table["deviation"][found.faintest] == min(row[1] for row in finite)
    if varied:
        row = found.table[found.most_spoiled]
        assert (row["nonfinite"], row["saturated"]) == max((r[3], np.float32(r[2])) for r in varied)
