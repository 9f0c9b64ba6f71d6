"""The server for coding agents: commands as tools of the Model Context Protocol, on files of one folder."""
