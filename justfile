# Short names for `cargo xtask`, which also works without just and has --help.

# List the recipes
default:
    @just --list

# Make the target wasm32-wasip2 usable, and fetch etcd and lavapipe for tests
setup:
    cargo xtask setup

# Set up, build, generate taxi trips if there are none, and train models per taxi zone
demo *args:
    cargo xtask demo -- {{ args }}

# Run all tests and the network simulation, or the tests that the arguments select
test *args:
    cargo xtask test -- {{ args }}

# Simulate schedulers, whole nodes and networks with many seeds; the tests do so with few
simulate seeds="10000":
    SANDBAR_SEEDS={{ seeds }} cargo xtask test -- -p sandbar-sched --test simulation
    SANDBAR_SEEDS={{ seeds }} cargo xtask test -- -p sandbar-runtime engine::simulation
    cd tests/simulation && SANDBAR_SEEDS={{ seeds }} cargo test --release

# Kill nodes of a cluster, one after another, while jobs run on it; the tests do so for 24 seconds
soak seconds="300" interval="20":
    SANDBAR_SOAK_S={{ seconds }} SANDBAR_SOAK_EVERY_S={{ interval }} cargo xtask test -- -p sandbar-tests soak -- --nocapture

# Flood a node with connections of strangers; the tests do so for 3 seconds of each kind
flood seconds="60":
    SANDBAR_FLOOD_S={{ seconds }} cargo xtask test -- -p sandbar-wire --test flood -- --nocapture

# Run attacks drawn at random by several tenants beside a victim; the tests run a few
hostile runs="1000" tenants="5" *args:
    cargo xtask hostile --runs {{ runs }} --tenants {{ tenants }} {{ args }}

# Check formatting, lints, the documentation of the SDK, and (with cargo-deny) licences and advisories
lint:
    cargo xtask lint

# Run lint and test: both must pass before a change is merged
check:
    cargo xtask check

# Generate data: taxi DIR, housing FILE, csvs DIR, small FILE
data *args:
    cargo xtask data {{ args }}

# Run a benchmark in release, with --json and --peers passed on
bench name *args:
    cargo xtask bench {{ name }} {{ args }}

# Fuzz a boundary of the host: answer, batch, blocks, component, dense, door, events, file, gpu, job, message, metadata, peer, request, ring, text, token
fuzz name *args:
    cargo xtask fuzz {{ name }} {{ args }}
