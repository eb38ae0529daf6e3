#!/usr/bin/env bash
# pytest 9.2.0: the modules of a distribution that is a pytest plugin are loaded by pytest's own import hook, which it
# puts before any that was there. A hook of one's own for such a module (a tracer's, a mutator's) is never asked, and
# nothing says so; with --assert=plain it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pytest==9.2.0 setuptools==80.9.0
mkdir -p "$folder/project/plug" && cd "$folder/project"
cat >pyproject.toml <<'END'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "plug"
version = "1"
[project.entry-points.pytest11]
plug = "plug.plugin"
[tool.setuptools]
packages = ["plug"]
END
touch plug/__init__.py plug/plugin.py
echo 'VALUE = "as it is in the file"' >plug/subject.py
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation .
cat >"$folder/hook.py" <<'END'
"""Gives plug.subject another value, as a first finder on sys.meta_path."""
import importlib.abc, importlib.util, sys

class Loader(importlib.abc.Loader):
    def exec_module(self, module):
        module.VALUE = "as the hook has it"

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, Loader()) if name == "plug.subject" else None

sys.meta_path.insert(0, Finder())
END
echo "import hook" >"$("$folder/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/hook.pth"
mkdir "$folder/tests" && cd "$folder/tests"
cat >test_subject.py <<'END'
def test_subject():
    from plug.subject import VALUE
    print("value:", VALUE)
END
export PYTHONPATH=$folder
seen() { "$folder/venv/bin/python" -m pytest -q -s -p no:cacheprovider "$@" 2>&1 | grep -o 'value: .*' || true; }
plain=$("$folder/venv/bin/python" -c 'from plug.subject import VALUE; print("value:", VALUE)')
rewritten=$(seen) unwritten=$(seen --assert=plain)
"$folder/venv/bin/python" -m pytest --version
printf 'python: %s\npytest: %s\npytest --assert=plain: %s\n' "$plain" "$rewritten" "$unwritten"
[[ $plain == "value: as the hook has it" && $rewritten == "value: as it is in the file" && $unwritten == "$plain" ]]
