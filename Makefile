# Works with GNU make 3.81 and later. The set-up itself is .ci/setup.
SHELL := /bin/sh
.NOTPARALLEL:
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

python := .venv/bin/python
ready := .venv/.ready
# Processes that run tests: more than there are processors, because some tests wait.
WORKERS := 3
# A file with the chapters and exercises of one's own course, and a folder with further cases of its exercises.
TOC :=
VARIANTS :=
# A seed: the tests' files run in a random order.
ORDER :=
export D2LPS_ORDER := $(ORDER)
# A processor that lacks an instruction set for torch lacks it for oneDNN, too: together, they raise.
ifeq ($(ATEN_CPU_CAPABILITY),default)
export ONEDNN_MAX_CPU_ISA ?= SSE41
else ifeq ($(ATEN_CPU_CAPABILITY),avx2)
export ONEDNN_MAX_CPU_ISA ?= AVX2
endif
export D2LPS_TOC := $(TOC)
export D2LPS_VARIANTS := $(VARIANTS)
REPEAT := 200
SCHEDULES := 100000

.PHONY: help lab lab-en lab-vi lab-zh book serve handout variants exercise grade test durations quick check figures record bench bench-check faults shake simulate build lock clean

help: ## show this list
	@sed -n 's/^\([^ :]*\):.*## */make \1@/p' Makefile | awk -F@ '{ printf "%-17s%s\n", $$1, $$2 }'

lab: $(ready) ## open the course in JupyterLab; your copies of the notebooks are in workspace/
	$(python) -m course.book lab

lab-en: $(ready) ## open it in English
lab-vi: $(ready) ## open it in Vietnamese
lab-zh: $(ready) ## open it in Chinese
lab-en lab-vi lab-zh:
	$(python) -m course.book lab --language $(@:lab-%=%)

book: $(ready) ## build the site in _site/; only changed chapters are run again (PDF=no, SOLUTIONS=no: without them)
	@sh .ci/setup book
	@sh .ci/setup hosts
	$(if $(TOC),,$(python) -m course.book build)
	$(python) -m course.site build $(if $(filter no,$(PDF)),--no-pdf) $(if $(filter no,$(SOLUTIONS)),--no-solutions)

serve: $(ready) ## show the site on this machine
	$(python) -m course.site serve

handout: $(ready) ## write a zip per language without solutions into dist/ (OUT=folder)
	$(python) -m course.handout write $(if $(OUT),--out '$(OUT)')

variants: $(ready) ## compare your own cases with the solutions: VARIANTS=folder
	@test -n '$(VARIANTS)' || { echo "Name the folder of your cases: make variants VARIANTS=folder" >&2; exit 2; }
	$(python) -m course.handout variants '$(VARIANTS)'

exercise: $(ready) ## copy an exercise of your own to start from: NAME=ring-bytes (FOLDER=own)
	@test -n '$(NAME)' || { echo "Name your exercise: make exercise NAME=ring-bytes" >&2; exit 2; }
	$(python) -m course.handout exercise '$(NAME)' $(if $(FOLDER),--folder '$(FOLDER)')

grade: $(ready) ## grade a class: FOLDER=class OUT=report (ARGUMENTS='--language vi --jobs 4')
	@test -n '$(FOLDER)' || { echo "Name the folder of the class: make grade FOLDER=class OUT=report" >&2; exit 2; }
	$(python) -m course.classes '$(FOLDER)' $(if $(OUT),--out '$(OUT)') $(ARGUMENTS)

test: $(ready) ## run ruff and all tests (WORKERS=3: in three processes; ORDER=seed: files in a random order)
	@sh .ci/setup book
	@sh .ci/setup browser
	@sh .ci/setup hosts
	$(python) -m ruff check
	$(python) -m ruff format --check -q d2lps course tests benchmarks
	@# .ci/run asks for pytest's own exit status, which make would not pass on.
	@$(python) -m pytest -n $(WORKERS) $(if $(RESULT),|| echo $$? >'$(RESULT)')

durations: export D2LPS_RECORD := 1
durations: test ## run all tests, and record how long each takes: later runs begin with the longest

quick: WORKERS = 2
quick: $(ready) ## run only the fast tests; run it often
	@sh .ci/setup book
	$(python) -m pytest -m "not slow" -n $(WORKERS)

check: $(ready) ## list everything that has to follow a change of a chapter, and check the types
	$(python) -m course.book check
	$(python) -m mypy

figures: $(ready) ## draw the figures in img/ again
	$(python) -m course.book figures

record: $(ready) ## run a chapter, and keep the results that not every machine can have: CHAPTER=03
	@test -n '$(CHAPTER)' || { echo "Name the chapter: make record CHAPTER=03" >&2; exit 2; }
	@sh .ci/setup book
	@sh .ci/setup hosts
	$(python) -m course.site record '$(CHAPTER)'

bench: MODULE = benchmarks
bench-check: MODULE = benchmarks.check
bench: $(ready) ## measure everything in benchmarks/ (ARGUMENTS='P4 --quick': one row, only to see that it runs)
bench-check: $(ready) ## run every benchmark once with small sizes; list those that fail
bench bench-check:
	@sh .ci/setup book
	@sh .ci/setup browser
	@sh .ci/setup hosts
	$(python) -m $(MODULE) $(ARGUMENTS)

faults: $(ready) ## print the table of faults that the key-value store survives, from its tests
	$(python) tests/kvstore/faults.py

shake: $(ready) ## run the store's quick tests REPEAT=200 times, switching threads every 2 µs, until Python crashes
	@i=0; while [ $$i -lt $(REPEAT) ]; do i=$$((i + 1)); \
	$(python) -c 'import sys, pytest; sys.setswitchinterval(2e-6); sys.exit(pytest.main(["tests/kvstore", "-m", "not slow"]))'; \
	status=$$?; [ $$status -le 1 ] || { echo "run $$i of $(REPEAT) ended with status $$status" >&2; exit 1; }; done

simulate: $(ready) ## play replication under SCHEDULES=100000 random faults; shrink the first schedule that breaks a promise
	PYTHONPATH=tests $(python) -m helpers.simulation $(SCHEDULES)

build: $(ready) ## write the notebooks and the syllabus again from lessons and texts
	$(python) -m course.book build
	$(python) -m course.syllabus

lock: ## update requirements.lock and environment.yml (UPGRADE=1: newest versions)
	@sh .ci/lock

clean: ## remove build results; workspace/ and .venv stay
	rm -rf build _site dist *.egg-info .pytest_cache .hypothesis .ruff_cache
	find chapters course d2lps tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# A .venv is not ready if its Python is gone, or if the folder was moved or copied here, however new its stamp is.
ifneq "$(shell $(python) -c '' 2>/dev/null && cat $(ready) 2>/dev/null)" "$(CURDIR)"
.PHONY: $(ready)
endif
$(ready): requirements.lock pyproject.toml .ci/setup
	@sh .ci/setup
