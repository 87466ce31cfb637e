# `make test` is the whole gate. Everything runs as root, or as a user who may use sudo.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Where cargo puts what rustup and `cargo install` make, and what an ordinary user of Debian has not in the path.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/sbin:/usr/sbin:/sbin
CARGO ?= cargo
# Builds as this user, and runs the test programs as root.
RUN_TESTS = CARGO="$(CARGO)" scripts/run-tests
# Seconds that each parser is fuzzed.
FUZZ_SECONDS ?= 300
FUZZ_SMOKE_SECONDS ?= 2
# Share of the full size of the benchmark's disks.
BENCH_SCALE ?= 1
# Disks that `make crash` recovers and compares.
CRASH_STATES ?= 1000000
# Requests that `make durability` asks each kind of disk.
DURABILITY_OPERATIONS ?= 1000000
# Seconds that `make load` keeps each format under load.
LOAD_SECONDS ?= 600
# Changes in place that `make kill` kills.
KILL_RUNS ?= 1000
# Moments at which `make running` takes the disk of each file system.
MOMENTS ?= 100
# Seconds that `make guard-soak` keeps each file system busy, and guards that it kills there at least.
SOAK_SECONDS ?= 3600
SOAK_KILLS ?= 200
# Runs of the coordinator and its guests that `make coordinate` simulates.
COORDINATE_SEEDS ?= 1000000
# Copies of running guests' disks that `make live-kills` kills.
LIVE_KILLS ?= 100
# Copies of each guest's disk that `make live-guest` makes.
LIVE_COPIES ?= 10
# Generations of random writes that `make backup-generations` backs up.
GENERATIONS ?= 1000

.PHONY: help background-figures guard-figures guard-soak results coordinate test quick tools format lint deny packages docs unit fuzz fuzz-smoke bench bench-smoke ntfs3 crash durability guest load kill backup-kills backup-generations resume flips running running-guests newer-nbd live-kills demo picture static static-test deb deb-test clean live-guest libvirt

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The gate builds everything once: what speeds up the next build, or helps a debugger, would take time and 6 GB of the disk.
test: export CARGO_INCREMENTAL = 0
test: export CARGO_PROFILE_DEV_DEBUG = 0
# Of fewer parts, less is compiled twice; two processors have enough to do with four.
test: export CARGO_PROFILE_DEV_CODEGEN_UNITS = 4
test: ## The gate: all checks, all tests, and how long each took
	scripts/gate tools format lint deny packages docs fuzz-smoke unit

quick: format lint ## Format, lints and unit tests: what to run all day
	$(RUN_TESTS) --locked --workspace --lib --bins

tools: ## Install what the gate needs and the machine lacks
	scripts/install-test-tools

format: ## Check the formatting
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --all --check

lint: ## Clippy, warnings are errors
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

deny: ## Licences, sources and bans of all dependencies; advisories where they can be fetched
	scripts/check-dependencies

packages: ## Package all crates, as `cargo publish` would
	scripts/check-packages

# Clippy's metadata, which `lint` has made, is used again: with what `cargo clippy` sets for `cargo check`, and with examples, of which there are
# none, because they need what tests need, so that all crates have the same features.
docs: ## Build the documentation, warnings are errors
	RUSTC_WORKSPACE_WRAPPER="$$(find "$$(rustc --print sysroot)/bin" -name clippy-driver)" \
		CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ RUSTDOCFLAGS=-Dwarnings \
		$(CARGO) doc --locked --no-deps --workspace --lib --bin xtask --examples --document-private-items

unit: ## All tests, with the benchmark on tiny disks beside them
	$(RUN_TESTS) --beside --locked --workspace

fuzz: ## Fuzz each parser for FUZZ_SECONDS
	scripts/fuzz $(FUZZ_SECONDS)

fuzz-smoke: ## Fuzz each parser for FUZZ_SMOKE_SECONDS
	FUZZ_PROFILE=smoke scripts/fuzz $(FUZZ_SMOKE_SECONDS)

guard-figures: ## What `leandisk guard` prevents and repairs on loop mounts (root; MIB=32 a file)
	$(CARGO) build --locked --release -p leandisk-cli
	scripts/as-root scripts/guard-figures target/release/leandisk

guard-soak: ## Guard ext4, XFS and Btrfs under load, kills, ENOSPC and freezes, and compare all files (SOAK_SECONDS=3600, SOAK_KILLS=200, SOAK_SYSTEMS=ext4,xfs,xfs-exchange,btrfs)
	scripts/install-test-tools
	SOAK_SECONDS=$(SOAK_SECONDS) SOAK_KILLS=$(SOAK_KILLS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- guard_soak::an_hour \
		--include-ignored --nocapture

background-figures: ## What fio notices of a copy, with and without --background (ROUNDS=3, SECONDS=10, MIB=4096)
	$(CARGO) build --locked --release -p leandisk-cli
	scripts/background-figures target/release/leandisk

results: ## Run `bench workloads` in all states and on all storages, and write docs/results.md (root; SIZE=256M RUNS=3 DIR=target)
	scripts/install-test-tools
	$(CARGO) build --locked --release -p leandisk-cli
	scripts/as-root scripts/results target/release/leandisk

coordinate: ## Simulate a coordinator and its guests, COORDINATE_SEEDS times
	SEEDS=$(COORDINATE_SEEDS) $(CARGO) test --locked -p leandisk-coordinate --test simulation -- --nocapture

bench: ## Compare with those that do the same work (BENCH_SCALE=0.1 for smaller disks)
	scripts/install-test-tools bench
	$(CARGO) build --locked --release -p leandisk-cli
	$(CARGO) run --locked --release -p leandisk-xtask -- bench --scale $(BENCH_SCALE)

# Built as `unit` builds it, which runs it, too: of fewer packages, some dependencies would have other features, and half of all were built
# twice.
bench-smoke: ## Run the benchmark on tiny disks: that it runs, not how fast
	$(CARGO) build --locked --workspace --bins --tests
	target/debug/xtask bench --smoke --program target/debug/leandisk

ntfs3: ## Have the kernel's own NTFS driver judge, in a Debian kernel under QEMU (Debian 13, qemu-system-x86, xz-utils)
	$(RUN_TESTS) --locked -p leandisk-testkit --test kernel -- --ignored
	$(RUN_TESTS) --locked -p leandisk-cli --test it -- ntfs3:: --ignored

crash: ## Cut the power of simulated machines at every write of changes in place, of compact and of copies that are resumed (CRASH_STATES=1000000)
	scripts/install-test-tools
	$(CARGO) run --locked --release -p leandisk-xtask -- crash --states $(CRASH_STATES)

durability: ## Ask disks in use of every kind random things, with cuts, kills and restarts between (DURABILITY_OPERATIONS=1000000)
	scripts/install-test-tools
	$(CARGO) run --locked --release -p leandisk-xtask -- durability --operations $(DURABILITY_OPERATIONS)

guest: ## Have a Debian kernel boot from served disks of every format, format, write, reboot and check
	scripts/install-test-tools
	$(RUN_TESTS) --locked -p leandisk-cli --test it -- guest:: --include-ignored --nocapture

load: ## Keep served disks under load, 16 connections with 16 requests each (LOAD_SECONDS=600), and compare every byte
	scripts/install-test-tools
	LOAD_SECONDS=$(LOAD_SECONDS) $(RUN_TESTS) --locked --release -p leandisk-cli --test it -- load:: --nocapture

kill: ## Kill changes in place and compact at random moments, recover, and compare every file (KILL_RUNS=1000)
	$(CARGO) build --locked --release -p leandisk-cli
	$(CARGO) run --locked --release -p leandisk-xtask -- kill --runs $(KILL_RUNS)

backup-kills: ## Kill backups at 200 moments, and have their storage fail at random in 200 more; restic judges
	$(RUN_TESTS) --locked -p leandisk-cli --test it -- backup::backups_killed --include-ignored --nocapture
	LEANDISK_STORAGE_FAULTS=200 $(RUN_TESTS) --locked -p leandisk-repository --test it -- shaky:: --nocapture

resume: ## Kill copies at every call that changes something, twice, resume, and compare
	scripts/install-test-tools
	$(RUN_TESTS) --locked -p leandisk-cli --test it -- resume:: --include-ignored --nocapture

flips: ## Flip a bit of every field of small ext and XFS volumes; e2fsck and xfs_repair say the same of the copy as of the source
	scripts/install-test-tools
	FLIPS=all $(RUN_TESTS) --locked --release -p leandisk-engine --test it -- flips:: --nocapture
	FLIPS=all $(RUN_TESTS) --locked --release -p leandisk-filesystem --test it -- xfs_flips:: --include-ignored --nocapture

live-kills: ## Kill LIVE_KILLS copies of running guests' disks, and look for what is left in QEMU
	LEANDISK_KILLS=$(LIVE_KILLS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- running::what_a_killed_copy \
		running_several::what_a_killed_copy running_tracked::no_change_is_skipped_after --nocapture

backup-generations: ## Back up GENERATIONS generations of random writes, of running guests and of images, and compare each with a model
	LEANDISK_GENERATIONS=$(GENERATIONS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- running_tracked::generations --nocapture

newer-nbd: ## Speak NBD's extended headers with QEMU and libnbd of Debian 13 (root, debootstrap)
	scripts/install-test-tools package
	$(CARGO) build --locked -p leandisk-cli
	scripts/as-root scripts/newer-nbd target/debug/leandisk

running: ## Take the disks of busy file systems at MOMENTS random moments, and have the kernel recover copies
	scripts/install-test-tools
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked --release -p leandisk-filesystem --test it -- running:: --nocapture
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked --release -p leandisk-filesystem --test it -- xfs_log:: --include-ignored --nocapture
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- running_lvm:: --nocapture

running-guests: ## Have a Debian kernel work on disks until it is killed, taken at MOMENTS random moments, and copies recovered (Debian, qemu-system-x86, xz-utils)
	scripts/install-test-tools
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked --release -p leandisk-filesystem --test it -- running_guest:: --ignored --nocapture
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- running_lvm:: --ignored --nocapture
	LEANDISK_MOMENTS=$(MOMENTS) $(RUN_TESTS) --locked -p leandisk-cli --test it -- guest_mirrors:: --ignored --nocapture

live-guest: ## Copy the disk of a Debian guest while SQLite, PostgreSQL and fio write to it, LIVE_COPIES times for each file system, and judge each copy (Debian, postgresql, qemu-system-x86)
	scripts/install-test-tools live
	LEANDISK_LIVE_COPIES=$(LIVE_COPIES) $(RUN_TESTS) --locked -p leandisk-cli --test it -- live_guest:: --ignored --nocapture --test-threads 1

libvirt: ## Copy the disk of a guest of libvirt's, as docs/recipes.md says (Debian, libvirt-daemon, qemu-system-x86)
	scripts/install-test-tools libvirt
	$(RUN_TESTS) --locked -p leandisk-cli --test it -- libvirt:: --ignored --nocapture

demo: ## Copy a real NTFS disk and prove the copy right
	scripts/install-test-tools demo
	$(CARGO) build --locked --release -p leandisk-cli
	scripts/demo

picture: demo ## Draw the README's pictures from what the demo's commands print
	cd demo && ../scripts/picture ../docs/pictures/info.svg "leandisk info windows.vhd" \
		../target/release/leandisk info windows.vhd
	cd demo && ../scripts/picture ../docs/pictures/analyze.svg "leandisk analyze windows.vhd" \
		../target/release/leandisk analyze windows.vhd --device sata-ssd
	cd demo && ../target/release/leandisk map windows.vhd -o ../docs/pictures/map.svg --force
	cd demo && ../scripts/picture ../docs/pictures/copy.svg "leandisk copy windows.vhd lean.qcow2" \
		../target/release/leandisk copy windows.vhd lean.qcow2 --force --progress none
	cd demo && cp windows.vhd aged.vhd && ../scripts/picture ../docs/pictures/defrag.svg "leandisk defrag aged.vhd" \
		../target/release/leandisk defrag aged.vhd --progress none

static: ## Build target/static/leandisk, one file that runs on every Linux
	scripts/install-test-tools package
	packaging/build-static

static-test: static ## Test it: info, copy and what they refuse; and guard, whose history is SQLite's
	scripts/install-test-tools
	LEANDISK_PROGRAM=$(CURDIR)/target/static/leandisk $(RUN_TESTS) --locked -p leandisk-cli --test it -- \
		documents:: every_pair:: refused:: targets:: guard::

deb: ## Build the Debian packages in target/deb
	scripts/install-test-tools package
	packaging/build-deb

deb-test: deb ## Install them in a clean Debian 12, and try them there
	packaging/test-deb

clean: ## Remove all that was built
	$(CARGO) clean
	rm -rf demo fuzz/target
