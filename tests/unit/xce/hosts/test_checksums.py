"""Checksums of files and folders: what anybody can compute with the tools at hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangflow.xce.hosts.checksums import NotCacheable, checksum, items, main


def folder(root: Path) -> Path:
    """A folder with files, a file in a folder, a link to a file, an empty folder, and names that sort oddly."""
    made = root / "model"
    (made / "sub").mkdir(parents=True)
    (made / "empty").mkdir()
    (made / "weights.bin").write_bytes(b"w" * 3_000_000)
    (made / "sub" / "a").write_text("a")
    (made / "sub-b").write_text("b")
    (made / "Z ü").write_text("z")
    (root / "elsewhere").write_text("linked")
    (made / "config.json").symlink_to(root / "elsewhere")
    return made


def test_a_files_checksum_is_its_sha256(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 2_500_000)
    assert checksum(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_folders_checksum_is_that_of_its_manifest(tmp_path: Path) -> None:
    made = folder(tmp_path)
    names = ["Z ü", "config.json", "sub-b", "sub/a", "weights.bin"]
    assert [item.path for item in items(made)] == names
    manifest = "".join(f"{hashlib.sha256((made / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    assert checksum(made) == hashlib.sha256(manifest.encode()).hexdigest()
    tools = "find -L . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    done = subprocess.run(tools, shell=True, cwd=made, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == checksum(made)
    (made / "sub-b").rename(made / "sub-c")
    assert done.stdout.split()[0] != checksum(made), "names count"


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    made = folder(tmp_path)
    for name, make in (
        ("to-folder", lambda path: path.symlink_to(tmp_path)),
        ("to-nothing", lambda path: path.symlink_to("nothing")),
        ("pipe", os.mkfifo),
        ("back\\slash", lambda path: path.write_text("")),
    ):
        make(made / name)
        with pytest.raises(NotCacheable, match=name.split("\\")[0]):
            checksum(made)
        (made / name).unlink()
    with pytest.raises(FileNotFoundError):
        checksum(tmp_path / "none")
    with pytest.raises(NotCacheable, match="neither a file nor a folder"):
        checksum("/dev/null")


def test_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = folder(tmp_path)
    run = [sys.executable, "-m", "gangflow.xce.hosts.checksums", str(made), str(made / "sub-b")]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{checksum(made)}  {made}", f"{checksum(made / 'sub-b')}  {made / 'sub-b'}"]
    assert main([]) == main(["--help"]) == 2
    assert main([str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
