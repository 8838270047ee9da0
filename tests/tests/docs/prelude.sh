set -euo pipefail
trap 'echo "line $LINENO of the page failed (exit code $?)" >&2' ERR

# Skips commands that the test has run before, runs the demo on less data, and passes all others to cargo.
cargo() {
    case "$1 ${2-}" in
    "build --release" | "xtask setup" | "xtask test" | "xtask bench" | "xtask hostile") echo "cargo $*: not run by the test" ;;
    "xtask demo") cargo xtask data taxi data/taxi && host submit examples/taxi.toml "${@:4}" ;;
    "xtask data") made_data "${@:3}" ;;
    *) command cargo "$@" ;;
    esac
}

made_data() {
    case "$1" in
    taxi) "$SANDBAR_DATA" "$@" --rows 20000 --months 2 ;;
    csvs) "$SANDBAR_DATA" "$@" --files 200 ;;
    *) "$SANDBAR_DATA" "$@" ;;
    esac
}

# The test has no internet access: copies what pages fetch from a folder.
curl() {
    local word
    for word in "$@"; do
        case "$word" in https://*) cp "$DOWNLOADS/${word##*/}" . ;; esac
    done
}
