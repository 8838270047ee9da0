# Thin names for `cargo xtask`, which also works without just and has a --help.

# List the recipes
default:
    @just --list

# Make the wasm32-wasip2 target usable
setup:
    cargo xtask setup

# Set up, build, make data and train a model per taxi zone
demo *args:
    cargo xtask demo -- {{ args }}

# Run every test, or those that the arguments select
test *args:
    cargo xtask test -- {{ args }}

# Check formatting, lints and licences
lint:
    cargo xtask lint

# What must pass before a change goes in
check:
    cargo xtask check

# Make data: taxi DIR, housing FILE, small FILE
data *args:
    cargo xtask data {{ args }}

# Run a benchmark in release
bench name *args:
    cargo xtask bench {{ name }} {{ args }}

# Look for bytes that a boundary does not stand: answer, batch, blocks, component, events, file, job
fuzz name *args:
    cargo xtask fuzz {{ name }} {{ args }}
