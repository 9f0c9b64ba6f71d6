"""Names in graphs that are being built."""


def unique_name(base: str, taken: set[str]) -> str:
    """A name that nothing has yet, the base itself where it is free; it is taken then."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name)
    return name
