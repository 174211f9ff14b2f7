# Bifröst: `make demo` runs the main job, `make test` passes the tests.
GO ?= go
P4C ?= p4c-bm2-ss

.PHONY: p4
p4: ## recompile the P4 program with a p4c on PATH
	$(P4C) --arch v1model --std p4-16 -o p4/bifrost.json --p4runtime-files p4/bifrost.p4info.txt p4/bifrost.p4
	{ sha256sum p4/bifrost.p4 p4/bifrost.json p4/bifrost.p4info.txt; $(P4C) --version 2>&1 | sed -n "s,^Version \([^ ]*\).*,p4c \1,p"; } > p4/bifrost.stamp
