"""``python -m docs``: builds the documentation site of this version."""

import argparse
from pathlib import Path

from docs.site import build_site


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs", description="Build the documentation site.")
    parser.add_argument("-o", "--output", type=Path, default=Path("site"), help="folder of all versions (site)")
    output: Path = parser.parse_args().output
    if output.exists() and not output.is_dir():
        parser.error(f"{output} is a file: give the folder of all versions, new or from before")
    built = build_site(output)
    print(f"wrote {built}; read it with: python -m http.server --directory {built.parent}")


if __name__ == "__main__":
    main()
