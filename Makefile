# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first, from the pinned versions in dev.lock.
# Arguments go on: make demo ARGS="--records 3000 --json"; make test ARGS="-k codec".
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Many tests wait for brokers and clients: six workers keep two cores busy. `tests/conftest.py` says what stays together.
PARALLEL := -n 6 --no-loadscope-reorder

# Tests and benches start hundreds of Python processes: without its bytecode each would compile keylane again, for a quarter of a second.
unexport PYTHONDONTWRITEBYTECODE
# pip puts everything into the environment that it runs in, also where its user's settings name another place for all else.
export PIP_USER := 0
unexport PIP_TARGET PIP_PREFIX PIP_ROOT
# The tests' plugins are those of .venv.
unexport PYTEST_DISABLE_PLUGIN_AUTOLOAD

.PHONY: demo test test-full check docs cluster kubernetes soak spark-versions wheel wheel-trial bench-engine bench-http bench-lanes bench-dataframes bench-scenarios bench-offsets bench-broker bench-delivery bench-operate compat mutants walk clean setup
.DEFAULT_GOAL := help

help:
	@echo "make demo   run the flights demo on Spark lanes          (ARGS=\"--records 3000 --json\")"
	@echo "make test   run the tests                               (ARGS=\"-k codec\")"
	@echo "make check  ruff, mypy --strict, import contracts, prose"
	@echo "make docs   the site of these pages, in build/docs: a warning is an error"
	@echo "make test-full  the longer ones and those beside Apache Kafka as well; a skip fails"
	@echo "make bench-engine  the engine beside the JVM Parallel Consumer (ARGS=\"--quick --rows 'key-*/16'\")"
	@echo "make bench-lanes  lanes beside one process and micro-batches  (ARGS=\"--parts table start\")"
	@echo "make bench-dataframes  DataFrames beside Spark's own Kafka connector  (ARGS=\"--parts rate latency\")"
	@echo "make bench-offsets  the offset store beside Apache Kafka  (ARGS=\"--quick --rows 'commit*' --sizes\")"
	@echo "make compat  outside clients, tools and test suites on the broker (ARGS=\"--suites 'kafka-python'\")"
	@echo "make bench-broker  records and transactions beside Apache Kafka  (ARGS=\"--quick --rows 'produce*' --sizes\")"
	@echo "make bench-http  10,000 HTTP requests in flight at once   (ARGS=\"--keys 1000 --latency-ms 500\")"
	@echo "make bench-delivery  records/s under each guarantee, transactions beside the JVM's  (ARGS=\"--broker apache --rows 'transactions*'\")"
	@echo "make bench-operate  what it costs a member to be operated, in processor time  (ARGS=\"--rate 10000 --turns 10\")"
	@echo "make bench-scenarios  use cases beside a plain consumer  (ARGS=\"burst\")"
	@echo "make mutants  faults in src that a named test has to notice  (ARGS=\"--only tracker\")"
	@echo "make walk   the files that one record, one commit and one row pass (ARGS=record)"
	@echo "make cluster  nodes die under every mode, of Apache Kafka, of Spark, and of YARN; lanes through Spark Connect (needs Java 17+ and Maven)"
	@echo "make kubernetes  the manifests on a real control plane, a fault each  (ARGS=\"-k lanes\"; as root, with Go 1.24+, Java 17+, Maven, tini, Prometheus)"
	@echo "make spark-versions  queries with kills on Spark 3.5 to 4.3 (ARGS=\"3.5 4.1\"; each is downloaded once: 450 MB)"
	@echo "make wheel  dist/keylane-….whl, for pip install and for the images"
	@echo "make wheel-trial  build wheel and sdist, and try them in a fresh environment"
	@echo "make soak   the long forms of the crash tests: it can be stopped, and goes on  (ARGS=\"-k journal\")"

setup: $(VENV)/.ready

$(VENV)/.ready: dev.lock pyproject.toml
	@echo "keylane: setting up $(VENV): PySpark with a Java, Kafka clients and what the tests need, pinned in dev.lock (the first time downloads about 700 MB and takes a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "keylane needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another one with PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes --no-warn-script-location -r dev.lock
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --quiet --editable .
	@touch $@

demo: setup
	@$(BIN)/keylane demo $(ARGS)

# The classes that Spark loads, as the tests' JVMs map them: each of a dozen starts takes half the time.
SPARK_CLASSES := build/spark-classes.jsa
$(SPARK_CLASSES): $(VENV)/.ready tests/kit/spark_classes.py
	@echo "keylane: writing $@ for the tests' JVMs (the first time, half a minute)"
	@mkdir -p $(@D)
	@PYTHONPATH=tests $(BIN)/python -m kit.spark_classes $@ 2>$@.log || { cat $@.log; exit 1; }

# The bytecode of tests and sources as pytest makes it: else each of its workers makes all of it, six seconds of a processor.
COLLECTED := build/collected
$(COLLECTED): $(VENV)/.ready
	@mkdir -p $(@D)
	@$(BIN)/python -m pytest --collect-only -qq >$@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

# Without columns in tracebacks: for them a thread that logs one parses source, and CPython 3.11 then raises SystemError in
# another thread that parses just then, as hypothesis does (https://github.com/python/cpython/issues/106905).
test test-full cluster kubernetes soak: export PYTHONNODEBUGRANGES = 1

# Nothing is fetched by Maven: a newcomer's tests need no network once they are set up.
test: export KEYLANE_NO_PEERS = 1
test: setup
	@$(MAKE) --no-print-directory -j 2 $(SPARK_CLASSES) $(COLLECTED)
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-full: setup
	@$(MAKE) --no-print-directory -j 2 $(SPARK_CLASSES) $(COLLECTED)
	@KEYLANE_NO_SKIPS=1 $(BIN)/python -m pytest -m "not soak and not cluster and not kubernetes" $(PARALLEL) $(ARGS)

# What they need and do not find is a failure here, and not a skip.
cluster: setup
	@KEYLANE_NO_SKIPS=1 $(BIN)/python -m pytest -m cluster -s $(ARGS)

# In namespaces of its own: it takes addresses, and all its processes end with it. What it downloads comes before.
kubernetes: setup
	@PYTHONPATH=tests:bench $(BIN)/python -m kit.pods.cluster
	@KEYLANE_NO_SKIPS=1 unshare --mount --net --pid --fork --kill-child --mount-proc \
	  $(BIN)/python -m pytest -m kubernetes -s tests/kubernetes $(ARGS)

soak: setup
	@PYTHONPATH=tests $(BIN)/python -m pytest -p kit.soak -m soak $(ARGS)

# Each Spark that pyproject.toml allows, in an environment of its own.
spark-versions: setup
	@PYTHONPATH=tests:bench $(BIN)/python -m kit.spark_versions $(ARGS)

# What `pip install` takes while keylane is in no index; the images take it, too.
wheel: setup
	@$(BIN)/python -m hatchling build -t wheel -d dist

# The wheel and the source distribution as a stranger gets them.
wheel-trial: setup
	@.ci/wheel-trial $(BIN)/python

bench-engine: setup
	@PYTHONPATH=bench $(BIN)/python -m engine $(ARGS)

bench-lanes: setup
	@PYTHONPATH=bench $(BIN)/python -m lanes $(ARGS)

bench-dataframes: setup
	@PYTHONPATH=bench $(BIN)/python -m dataframes $(ARGS)

bench-offsets: setup
	@PYTHONPATH=bench $(BIN)/python -m offsets $(ARGS)

compat: setup
	@PYTHONPATH=bench $(BIN)/python -m compat $(ARGS)

bench-broker: setup
	@PYTHONPATH=bench $(BIN)/python -m broker $(ARGS)

bench-http: setup
	@PYTHONPATH=bench $(BIN)/python -m http_calls $(ARGS)

bench-delivery: setup
	@PYTHONPATH=bench $(BIN)/python -m delivery $(ARGS)

bench-operate: setup
	@PYTHONPATH=bench $(BIN)/python -m operate $(ARGS)

bench-scenarios: setup
	@PYTHONPATH=bench $(BIN)/python -m scenarios $(ARGS)

mutants: setup
	@PYTHONPATH=tests $(BIN)/python -m mutants $(ARGS)

walk: setup
	@PYTHONPATH=bench $(BIN)/python -m walk $(ARGS)

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@PYTHONPATH=tests $(BIN)/python -m kit.prose

# Sphinx lies beside .venv, which it reads docstrings from: only who builds the site downloads it.
DOCS_VENV := build/docs-venv
$(DOCS_VENV)/.ready: docs.lock $(VENV)/.ready
	@echo "keylane: setting up $(DOCS_VENV) (Sphinx, pinned in docs.lock: about 25 MB)"
	@rm -rf $(DOCS_VENV)
	@$(BIN)/python -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --no-deps --require-hashes --quiet -r docs.lock
	@$(BIN)/python -c 'import site; print("import site; site.addsitedir(\"" + site.getsitepackages()[0] + "\")")' \
	  >"$$($(DOCS_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/keylane-dev.pth"
	@touch $@

# From a copy of the pages, into which goes what the code says already: Sphinx walks through all that lies beside them.
# The text of api.md is its docstrings.
docs: $(DOCS_VENV)/.ready
	@rm -rf build/docs-source
	@mkdir -p build/docs-source
	@cp -rp *.md docs examples build/docs-source
	@PYTHONPATH=bench $(BIN)/python docs/reference.py build/docs-source/docs
	@PYTHONPATH=bench $(BIN)/python -m walk --page build/docs-source/docs/architecture.md >build/walk.log 2>&1 || { cat build/walk.log; exit 1; }
	@$(DOCS_VENV)/bin/python -m sphinx -q -E -W --keep-going -c docs -d build/docs-trees build/docs-source build/docs $(ARGS)
	@$(DOCS_VENV)/bin/python -m sphinx -q -W -b text -c docs -d build/docs-trees build/docs-source build/docs-text build/docs-source/docs/api.md
	@cp build/docs-text/docs/api.txt build/docs/docs/api.md
	@echo "keylane: build/docs/index.html"

clean:
	@rm -rf $(VENV)
