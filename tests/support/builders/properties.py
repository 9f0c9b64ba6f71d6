"""How many examples a property test gets: few in the inner loop, more with each commit, and many at night."""

from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """Settings of a property test that gets ``count`` examples or what the profile allows, and more at night."""
    at_night = settings.get_current_profile_name() == "nightly"
    return settings(max_examples=2 * count if at_night else min(count, settings().max_examples), **options)
