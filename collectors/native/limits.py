"""Time limits of runs of models, as far as they are known without loading anything."""

#: Seconds that one run of a model may take, unless the user says otherwise.
DEFAULT_LIMIT = 600.0
