"""Versions of the site beside each other: what stays, what is listed, and what leads to the newest."""

import json
import re
from pathlib import Path

from docs.versions import versions_in, write_versions

PAGES = ["", "rules/W001/", "manual/proof/"]


def build(output: Path, version: str) -> None:
    """What Zensical leaves of a version, made up."""
    for page in PAGES:
        (output / version / page).mkdir(parents=True, exist_ok=True)
        (output / version / page / "index.html").write_text(version, encoding="utf-8")
    (output / version / "llms.txt").write_text(version, encoding="utf-8")
    write_versions(output, version, PAGES)


def target_of(page: Path) -> Path:
    """The page that another one leads to, with script, without, and by hand."""
    text = page.read_text(encoding="utf-8")
    targets = {
        *re.findall(r'url=(.*?)"', text),
        *re.findall(r'href="(.*?)"', text),
        *re.findall(r'replace\("(.*?)"', text),
    }
    (target,) = targets
    return (page.parent / target / "index.html").resolve()


def test_the_newest_goes_by_number(tmp_path: Path) -> None:
    for version in ("0.9", "0.10", "1.0.2"):
        build(tmp_path, version)
    (tmp_path / "drafts").mkdir()
    (tmp_path / "2.0").mkdir()  # nothing was built there
    assert versions_in(tmp_path) == ["1.0.2", "0.10", "0.9"]


def test_latest_and_the_root_lead_to_the_newest(tmp_path: Path) -> None:
    build(tmp_path, "0.9")
    build(tmp_path, "0.10")
    for page in PAGES:
        assert target_of(tmp_path / "latest" / page / "index.html") == tmp_path / "0.10" / page / "index.html"
    assert target_of(tmp_path / "index.html") == tmp_path / "0.10" / "index.html"
    listed = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [(each["version"], each["aliases"]) for each in listed] == [("0.10", ["latest"]), ("0.9", [])]


def test_an_older_version_that_is_built_again_stays_the_older_one(tmp_path: Path) -> None:
    build(tmp_path, "0.10")
    build(tmp_path, "0.9")
    assert target_of(tmp_path / "index.html").parent.name == "0.10"
    assert (tmp_path / "latest" / "llms.txt").read_text(encoding="utf-8") == "0.10"
    assert len(json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))) == 2


def test_pages_that_are_gone_lead_nowhere(tmp_path: Path) -> None:
    build(tmp_path, "0.9")
    (tmp_path / "latest" / "gone").mkdir()
    build(tmp_path, "0.10")
    assert not (tmp_path / "latest" / "gone").exists()
    assert (tmp_path / "0.9" / "rules" / "W001" / "index.html").read_text(encoding="utf-8") == "0.9"
