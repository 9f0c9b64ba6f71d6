"""Files that toolchains leave behind: configurations, logs, tables, encodings. One module per kind of file.

A module holds ``FORMATS``; ``formats`` finds it, so that a new kind of file is one new module.
"""
