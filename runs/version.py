"""Which commit of the source is running, read from the checkout's own files; runs no program."""

from __future__ import annotations

from pathlib import Path


def commit(start: Path | None = None) -> str:
    """The commit that HEAD names, "" outside a git checkout. Files that were changed since do not show."""
    root = (start or Path(__file__).resolve()).parent.parent
    try:
        folder = _git_folder(root)
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        return _resolved(folder, head.removeprefix("ref: ")) if head.startswith("ref: ") else head
    except OSError:
        return ""


def _git_folder(root: Path) -> Path:
    """.git itself, or what a worktree's .git file points to."""
    place = root / ".git"
    if place.is_file():
        return (root / place.read_text(encoding="utf-8").removeprefix("gitdir: ").strip()).resolve()
    return place


def _resolved(folder: Path, ref: str) -> str:
    common = folder / "commondir"
    shared = (folder / common.read_text(encoding="utf-8").strip()).resolve() if common.is_file() else folder
    for place in (folder, shared):
        if (place / ref).is_file():
            return (place / ref).read_text(encoding="utf-8").strip()
    packed = (shared / "packed-refs").read_text(encoding="utf-8").splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {ref}")), "")
