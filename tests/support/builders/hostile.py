"""Names that attack every format in which they are shown."""

#: The last one is longer than anything may be shown.
HOSTILE_NAMES = (
    "</script>",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "{% raw %}",
    "\"'><img src=x onerror=alert(1)>",
    "nul\x00name",
    "bidi\u202ename",
    "line\n::error::owned",
    "::error::owned",
    "##[error]owned",
    "]]>",
    "a|b`c`*d*_e_[f](javascript:alert(1))",
    "esc\x1b[31mred",
    "snow☃man 層",
    "x" * 10_000,
)
