"""Where results that are worth keeping between runs lie: a folder that nobody but the user writes to.

What lies there is trusted: numba's index of compiled code is a pickle, and a converted model is measured as yours.
"""

import os
import stat
import sys
import tempfile
from pathlib import Path

if sys.platform != "win32":  # there, profiles are protected by lists of access that no mode shows
    import grp
    import pwd

#: Links that lead from one to the next at most.
MAX_LINKS = 40


def cache_folder(name: str) -> Path | None:
    """A private folder of the user's cache; None where there is none, and then nothing is kept.

    Never beside the source: files that pip does not know would survive an uninstall and hide the next install. Never
    in the temporary directory either: there, others may have been first.
    """
    try:
        root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache"
        folder = Path(os.path.abspath(root)) / "quantmedic" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            return None
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # the latter where the user has no home
        return None


def is_private(folder: Path) -> bool:
    """Nobody but its owner, the user, gets into it, and nobody else can put another in its place.

    A folder that only the user could write to is closed to readers first.

    Raises:
        OSError: It, or what it lies in, cannot be looked at.
    """
    if sys.platform != "win32":
        own = folder.lstat()
        if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.geteuid() or not _is_guarded(folder):
            return False
        folder.chmod(0o700)
    return True


if sys.platform != "win32":

    def _is_guarded(path: Path, links: int = MAX_LINKS) -> bool:
        """Only the user and the administrator can rename or write to it, to what it lies in, and to where links lead.

        Where everybody may write but not rename what is another's, as in the temporary directory, it is guarded still.
        """
        for place in (path, *path.parents):
            found = place.lstat()
            if found.st_uid not in (0, os.geteuid()):
                return False
            if stat.S_ISLNK(found.st_mode):
                target = Path(os.path.normpath(place.parent / os.readlink(place)))
                if links == 0 or not _is_guarded(target, links - 1):
                    return False
            elif _others_write(found) and (place == path or not found.st_mode & stat.S_ISVTX):
                return False
        return True

    def _others_write(found: os.stat_result) -> bool:
        if found.st_mode & stat.S_IWOTH:
            return True
        return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(found.st_gid)

    def _is_own_group(number: int) -> bool:
        """The group that many systems give every user, with nobody else in it."""
        try:
            user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
        except KeyError:
            return False
        return user.pw_gid == number and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
