# Two commands: `make demo` makes pictures, `make test` proves the code. Both set everything up first.
PYTHON ?= python3
DEMO   := tools/demo
BUNDLE := bundles/demo
# Versions of one package overwrite each other: every one has a folder of its own.
BINDINGS := build/tensorrt_bindings

.PHONY: demo test lint typecheck results bench clean

demo: .venv-demo/ready
	.venv-demo/bin/coolsd-trt build --target $(DEMO)/target --draft $(DEMO)/draft \
	    --image-decoder $(DEMO)/image_tokenizer --out $(BUNDLE)
	.venv-demo/bin/coolsd-trt generate $(BUNDLE) --class face-smiling --class country-flag --class person-role \
	    --class face-concerned -n 8 --seed 1 --grid --out pictures/demo.png

test: .venv/nvidia lint typecheck
	.venv/bin/python -m pytest

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

# The type checker wants to see the folders under the import package's name.
typecheck: .venv/ready
	mkdir -p build/typed/coolsd_trt
	for folder in runtime engines export tools; do ln -sfn ../../../$$folder build/typed/coolsd_trt/$$folder; done
	cd build/typed && ../../.venv/bin/mypy --config-file ../../pyproject.toml --cache-dir ../mypy -p coolsd_trt

# The measured tables of the README and docs/results.md, on the bundle of `make demo`; some minutes each on a quiet machine.
results: .venv/ready
	.venv/bin/python -m coolsd_trt.tools.bench rules $(BUNDLE) --cfg 3 --json docs/results/rules.json
	.venv/bin/coolsd-trt calibrate $(BUNDLE) --drift-budget 0.05 --dry-run --json docs/results/calibration.json \
	    --plot docs/results/frontier.png
	.venv/bin/python -m coolsd_trt.tools.evaluation.report $(BUNDLE) --out docs/results.md

# Every benchmark on a quiet machine, about a quarter of an hour: docs/results/ and the page made from it.
RESULTS := docs/results
BENCH   := .venv/bin/python -m coolsd_trt.tools.bench
bench: .venv/ready
	$(BENCH) step --json $(RESULTS)/step.json
	$(BENCH) tokens --json $(RESULTS)/tokens.json
	$(BENCH) host --json $(RESULTS)/host.json
	$(BENCH) memory --demo $(BUNDLE) --json $(RESULTS)/memory.json
	$(BENCH) startup $(BUNDLE) --json $(RESULTS)/startup.json
	$(BENCH) rules $(BUNDLE) --cfg 3 --json $(RESULTS)/rules.json
	$(BENCH) tables $(RESULTS) --out docs/benchmarks.md

.venv-demo/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/pip install --quiet -c constraints.txt -e '.[cpu,export]'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet -c constraints.txt -e '.[cpu,export,torch,dev]'
	touch $@

# What tests of TensorRT need and can do without: they skip, and say so. TensorRT-RTX builds plans without a GPU; of
# enterprise TensorRT only the Python bindings are on PyPI, and tests read their names. Tried again until all are there.
.venv/nvidia: .venv/ready tests/engines/trt/bindings.txt
	@complete=yes; \
	for package in cuda-bindings tensorrt-rtx; do \
	    .venv/bin/pip install --quiet --retries 1 -c constraints.txt $$package || complete=no; \
	done; \
	for pin in $$(grep '^tensorrt' tests/engines/trt/bindings.txt); do \
	    .venv/bin/pip install --quiet --retries 1 --no-deps --upgrade --target $(BINDINGS)/$${pin#*==} $$pin || complete=no; \
	done; \
	if [ $$complete = yes ]; then touch $@; else echo 'warning: some TensorRT tests will be skipped' >&2; fi

clean:
	rm -rf .venv .venv-demo build bundles pictures *.egg-info
