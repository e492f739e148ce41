"""What is installed: the wheel and the sdist hold what the package needs, and work outside a checkout."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import documents
import pytest

import leanify


@pytest.mark.docs
def test_sdist_and_wheel_work_alone(tmp_path: Path) -> None:
    """In an environment that has leanify from its wheel alone, and its dependencies from here."""
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(documents.ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml", "leanify/lens/zoo.json", "recipes/digits.toml", "recipes/results/evidence.md",
        "docs/start.md",
    } <= names  # fmt: skip
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    home = Path(documents.shell(f"{python} -c 'import site; print(site.getsitepackages()[0])'", tmp_path).strip())
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(home), str(wheel)]
    subprocess.run(command, check=True)
    assert (home / "leanify" / "py.typed").is_file()
    (home / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    place = documents.shell(f"{python} -c 'import leanify; print(leanify.__file__)'", tmp_path)
    assert place.startswith(str(home))
    assert "digits" in documents.shell(f"{python} -m leanify recipes", tmp_path)
    assert "vit_tiny" in documents.shell(f"{python} -m leanify zoo", tmp_path)
    assert "lean" in documents.shell(f"{python} -m leanify redesign vit_tiny --target-params 0.6", tmp_path)
    assert (home / "leanify" / "comparison" / "page.html.j2").exists()


def test_public_names_are_typed() -> None:
    """Callers get types, and the public names alone."""
    assert Path(leanify.__file__).with_name("py.typed").is_file()
    assert dir(leanify) == sorted(leanify.__all__)
