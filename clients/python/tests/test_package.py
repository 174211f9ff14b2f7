"""The package, as pip installs it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import typing
import unittest

import bifrost
import bifrost.aio
import bifrost.host

ROOT = pathlib.Path(__file__).resolve().parent.parent


class TestPackage(unittest.TestCase):
    def test_installed(self):
        """What pip installs is whole: it is imported from there, has all files of the package, and says that it has types."""
        with tempfile.TemporaryDirectory() as place:
            source = shutil.copytree(ROOT, os.path.join(place, "source"), ignore=shutil.ignore_patterns("__pycache__", "build"))
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", place + "/site", source]
            done = subprocess.run(pip, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            files = lambda root: {f.name for f in pathlib.Path(root, "bifrost").iterdir() if f.is_file()}
            self.assertEqual(files(place + "/site"), files(ROOT))
            where = [sys.executable, "-c", "import bifrost; print(bifrost.__file__)"]
            done = subprocess.run(where, capture_output=True, text=True, cwd=place, env={**os.environ, "PYTHONPATH": place + "/site"})
            self.assertTrue(done.stdout.startswith(place + "/site/"), done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("mypy"), "no mypy on PATH")
    def test_mypy(self):
        """mypy has nothing against the package, and knows the types of what a program calls."""
        with tempfile.TemporaryDirectory() as place:
            program = pathlib.Path(place, "program.py")
            program.write_text("import bifrost, bifrost.aio\nreveal_type(bifrost.join().memory.read)\nreveal_type(bifrost.aio.join().run)\nbifrost.join(1)\n")
            mypy = ["mypy", "--cache-dir", place, "--config-file", str(ROOT / "pyproject.toml")]
            done = subprocess.run(mypy, capture_output=True, text=True, cwd=ROOT)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            done = subprocess.run([*mypy, str(program)], capture_output=True, text=True, cwd=ROOT)
            self.assertIn('"def (pointer: builtins.bytes, length: builtins.int) -> builtins.bytes"', done.stdout)
            self.assertIn('incompatible type "int"', done.stdout)

    def test_hints(self):
        """What programs call has hints for its result and its parameters, which mean something."""
        for f in (bifrost.join, bifrost.current, bifrost.Node.client, bifrost.Node.export, bifrost.Node.who, bifrost.Node.close, bifrost.Node.call, bifrost.Error.__init__,
                  bifrost.aio.join, bifrost.aio.handler, bifrost.host.Service.__init__, bifrost.host.serve, bifrost.host.current, bifrost.host.state, bifrost.host.State.keys_from, bifrost.host.now, bifrost.host.random,
                  bifrost.host.effect, bifrost.host.aeffect, bifrost.host.client, bifrost.host.aclient, bifrost.host.run, bifrost.host.log, bifrost.aio.Node.run, bifrost.aio.Node.client, bifrost.aio.Node.export, bifrost.node.Memory.alloc, bifrost.node.Memory.read, bifrost.node.Memory.write, bifrost.node.Memory.free,
                  bifrost.refs.client, bifrost.refs.processor, bifrost.refs.put, bifrost.refs.Ref.open, bifrost.refs.Ref.load, bifrost.refs.Ref.free, bifrost.refs.Ref.share, bifrost.refs.Ref.unshare, bifrost.refs.borrow,
                  bifrost.form.kind_of, bifrost.form.open, bifrost.form.List.load, bifrost.form.Map.items):
            self.assertIn("return", typing.get_type_hints(f), f)

    def test_version(self):
        """The oldest Python that the package takes is the one that its page names."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        least = project["requires-python"].removeprefix(">=")
        self.assertIn("Python %s or later" % least, (ROOT / "README.md").read_text())
        self.assertIn("Python %s or later" % least, bifrost.__doc__)


if __name__ == "__main__":
    unittest.main()
