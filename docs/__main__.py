"""``python -m docs``: builds the documentation site of this version."""

import argparse
from pathlib import Path

from docs.site import build_site


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs", description="Build the documentation site.")
    parser.add_argument("-o", "--output", type=Path, default=Path("site"), help="folder of all versions (site)")
    built = build_site(parser.parse_args().output)
    print(f"wrote {built}; read it with: python -m http.server --directory {built.parent}")


if __name__ == "__main__":
    main()
