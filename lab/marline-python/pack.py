"""Packs a wheel around a module already built by cargo, for continuous integration.

``maturin build`` makes the distributed wheels (pyproject.toml), but it would compile everything a second time.
Both have the same content: the package, the module, and the metadata of pyproject.toml.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent


def pack(module: Path, folder: Path) -> Path:
    """Writes the wheel into a directory."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((HERE / "../../Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    tag = "cp311-abi3-" + sysconfig.get_platform().replace("-", "_")
    metadata = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    for extra, needs in project["optional-dependencies"].items():
        metadata.append(f"Provides-Extra: {extra}")
        metadata += [f"Requires-Dist: {need} ; extra == '{extra}'" for need in needs]
    stem = f"{project['name']}-{version}"
    info = f"{stem}.dist-info"
    files = {f"marline/{path.name}": path.read_bytes() for path in sorted(HERE.glob("python/marline/*.py*"))}
    files["marline/py.typed"] = b""
    files["marline/_native.abi3.so"] = module.read_bytes()
    wheel = f"Wheel-Version: 1.0\nGenerator: marline\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/METADATA"] = ("\n".join(metadata) + "\n").encode()
    files[f"{info}/WHEEL"] = wheel.encode()
    record = f"{info}/RECORD"
    sums = [f"{name},sha256={_sum(content)},{len(content)}" for name, content in files.items()]
    files[record] = ("\n".join([*sums, f"{record},,"]) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return made


def _sum(content: bytes) -> str:
    """The hash in the format of a wheel's RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2])))
