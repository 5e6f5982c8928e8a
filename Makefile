# Works with GNU make 3.81 and later. The set-up itself is .ci/setup.
SHELL := /bin/sh
.NOTPARALLEL:
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

python := .venv/bin/python
ready := .venv/.ready
# Processes that take the tests: more than there are processors, since some tests wait.
WORKERS := 3
REPEAT := 200
SCHEDULES := 100000

.PHONY: help lab lab-en lab-vi lab-zh book serve grade test quick check figures bench faults shake simulate build lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## */make \1@/p' Makefile | awk -F@ '{ printf "%-14s%s\n", $$1, $$2 }'

lab: $(ready) ## learn: JupyterLab on chapter 01; your copies of the notebooks are in workspace/
	$(python) -m course.book lab

lab-en: $(ready) ## the same, in English
lab-vi: $(ready) ## the same, in Vietnamese
lab-zh: $(ready) ## the same, in Chinese
lab-en lab-vi lab-zh:
	$(python) -m course.book lab --language $(@:lab-%=%)

book: $(ready) ## the course as a site, in _site/: chapters are executed where they have changed (PDF=no prints no PDFs)
	@sh .ci/setup book
	@sh .ci/setup hosts
	$(python) -m course.book build
	$(python) -m course.site build $(if $(filter no,$(PDF)),--no-pdf)

serve: $(ready) ## show the site on this machine
	$(python) -m course.site serve

grade: $(ready) ## grade the notebooks of a class: FOLDER=class OUT=report (ARGUMENTS='--language vi --jobs 4')
	@test -n '$(FOLDER)' || { echo "make grade FOLDER=the-folder-of-the-class OUT=the-folder-for-the-report" >&2; exit 2; }
	$(python) -m course.classes '$(FOLDER)' $(if $(OUT),--out '$(OUT)') $(ARGUMENTS)

test: $(ready) ## everything that is tested: ruff, then pytest (WORKERS=3: so many processes)
	@sh .ci/setup book
	@sh .ci/setup browser
	@sh .ci/setup hosts
	$(python) -m ruff check
	$(python) -m ruff format --check -q d2lps course tests
	@# .ci/run asks for pytest's own exit status, which make would not pass on.
	@$(python) -m pytest -n $(WORKERS) $(if $(RESULT),|| echo $$? >'$(RESULT)')

quick: WORKERS = 2
quick: $(ready) ## the tests that take no time and start no processes: to be run often
	@sh .ci/setup book
	$(python) -m pytest -m "not slow" -n $(WORKERS)

check: $(ready) ## what has to follow a change of a chapter
	$(python) -m course.book check

figures: $(ready) ## draw img/ anew
	$(python) -m course.book figures

bench: $(ready) ## measure everything in tests/benchmarks (ARGUMENTS=--quick: only to see that all of it runs)
	@sh .ci/setup book
	@sh .ci/setup browser
	@sh .ci/setup hosts
	@for name in model carriers kvstore replicas saving cluster classes player site; do \
	$(python) tests/benchmarks/$$name.py $(ARGUMENTS) || exit 1; done

faults: $(ready) ## the table of faults that the key-value store withstands, from its tests
	$(python) tests/kvstore/faults.py

shake: $(ready) ## the quick tests of the store REPEAT=200 times, threads taking turns every 2 µs, until Python crashes
	@i=0; while [ $$i -lt $(REPEAT) ]; do i=$$((i + 1)); \
	$(python) -c 'import sys, pytest; sys.setswitchinterval(2e-6); sys.exit(pytest.main(["tests/kvstore", "-m", "not slow"]))'; \
	status=$$?; [ $$status -le 1 ] || { echo "run $$i of $(REPEAT) ended with status $$status" >&2; exit 1; }; done

simulate: $(ready) ## replicated slots under SCHEDULES=100000 seeded schedules of faults; the first that breaks a promise is shrunk
	$(python) -m d2lps.kvstore.replication $(SCHEDULES)

build: $(ready) ## write the notebooks anew
	$(python) -m course.book build

lock: ## renew requirements.lock and environment.yml (UPGRADE=1 for newer versions)
	@sh .ci/lock

clean: ## remove what was built; workspace/ and .venv stay
	rm -rf build _site dist *.egg-info .pytest_cache .hypothesis .ruff_cache
	find chapters course d2lps tests -name __pycache__ -prune -exec rm -rf {} +

# A .venv whose Python is gone, or which was moved or copied here with its folder, is not ready, whatever its stamp's age.
ifneq "$(shell $(python) -c '' 2>/dev/null && cat $(ready) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(ready)
endif
$(ready): requirements.lock pyproject.toml .ci/setup
	@sh .ci/setup
