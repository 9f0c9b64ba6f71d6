"""Tables of a flatbuffer, every position confined to it: what leads out of it, or is walked forever, is damage."""

import struct

#: What a damaged flatbuffer raises.
DAMAGE = (struct.error, ValueError, OSError)
#: Bytes that a table takes at least: one that is walked oftener than the file has room for is shared without end.
_TABLE_BYTES = 8


class FlatBuffer:
    """A flatbuffer. A table is known by its position; its fields by their places in the schema."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.left = len(content) // _TABLE_BYTES
        self.root = self._follow(0)

    def table(self, table: int, field: int) -> int | None:
        """The table that a field holds; None without it."""
        place = self._place(table, field)
        return None if place is None else self._follow(place)

    def tables(self, table: int, field: int) -> list[int]:
        """The tables of a vector; none without it.

        Raises:
            ValueError: It holds more than the file has room for.
        """
        start, count = self._vector(table, field, 4)
        self.left -= count
        if self.left < 0:
            raise ValueError("it holds more tables than it has room for")
        return [self._follow(start + 4 * k) for k in range(count)]

    def longs(self, table: int, field: int) -> tuple[int, ...]:
        """Whole numbers of 64 bits."""
        start, count = self._vector(table, field, 8)
        return struct.unpack_from(f"<{count}q", self.content, start)

    def number(self, table: int, field: int, kind: str, default: int) -> int:
        """A number of a kind of ``struct``."""
        place = self._place(table, field)
        return default if place is None else self._at(place, kind)

    def text(self, table: int, field: int) -> str:
        """A text; empty without it."""
        start, count = self._vector(table, field, 1)
        return self.content[start : start + count].decode()

    def _vector(self, table: int, field: int, width: int) -> tuple[int, int]:
        place = self._place(table, field)
        if place is None:
            return 0, 0
        start = self._follow(place)
        count = self._at(start, "I")
        if start + 4 + count * width > len(self.content):
            raise ValueError("a vector is longer than the file")
        return start + 4, count

    def _place(self, table: int, field: int) -> int | None:
        """Where a field of a table stands; None where it is left out."""
        schema = table - self._at(table, "i")
        if 4 + 2 * field >= self._at(schema, "H"):
            return None
        within = self._at(schema + 4 + 2 * field, "H")
        return table + within if within else None

    def _follow(self, place: int) -> int:
        return place + self._at(place, "I")

    def _at(self, place: int, kind: str) -> int:
        if place < 0:
            raise ValueError("a position lies before the file")
        number: int = struct.unpack_from(f"<{kind}", self.content, place)[0]
        return number
