"""How many examples a property test gets: few in the inner loop, all in a thorough run."""

from typing import Any

from hypothesis import settings


def examples(count: int, **options: Any) -> settings:
    """Settings of a property test that gets ``count`` examples in a thorough run."""
    is_quick = settings.get_current_profile_name() == "quick"
    return settings(max_examples=min(count, settings().max_examples) if is_quick else count, **options)
