#!/bin/bash
# Inputs from public bug reports, run with the built host. Each case prints `ok`, or `WRONG` with the actual output.
# Usage: tests/cases/run.sh [PATTERN]   PATTERN selects cases by name, as a pattern of `case`; default: all.
# Environment: HOST names the host (default: release/host in CARGO_TARGET_DIR, or in `target`). `cargo xtask test` or
# `cargo build --release` builds it. Tests of host/dataset cover Parquet files of other writers (INT96, encrypted).
# Exit codes: 0 all cases are right, 1 some are wrong, 2 no host was found.
set -u
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HOST=${HOST:-${CARGO_TARGET_DIR:-$ROOT/target}/release/host}
[ -x "$HOST" ] || { echo "there is no host $HOST: run \`cargo build --release\`, or set HOST" >&2; exit 2; }
HOST=$(realpath "$HOST")
PATTERN=${1:-*}
WORK=$(mktemp -d)
export XDG_STATE_HOME=$WORK/state
SERVING=()
end() {
  [ ${#SERVING[@]} -eq 0 ] || kill "${SERVING[@]}" 2>/dev/null
  wait
  rm -rf "$WORK"
}
trap end EXIT
WRONG=0

# same NAME EXPECTED ACTUAL
same() {
  if [ "$2" = "$3" ]; then
    echo "ok     $1"
  else
    WRONG=1
    printf 'WRONG  %s\n       right: %.400s\n       came:  %.600s\n' "$1" "$2" "$3"
  fi
}
# has NAME WORDS ACTUAL: checks that ACTUAL contains each line of WORDS.
has() {
  local words
  while IFS= read -r words; do
    case $3 in *"$words"*) ;; *) same "$1" "… $words …" "$3"; return ;; esac
  done <<<"$2"
  same "$1" "" ""
}
wanted() { case $1 in $PATTERN) ;; *) return 1 ;; esac }

# begin NAME: enters an empty folder for the case NAME. Fails if PATTERN does not select the case.
begin() {
  wanted "$1" || return 1
  NAME=$1
  mkdir -p "$WORK/case" && cd "$WORK/case" && rm -rf -- * && return 0
}
# read_as EXPECTED [LINES OF input]: checks the rows that a job reads, as JSON lines without quotes.
read_as() {
  local expected=$1
  shift
  { echo '[input]'; printf '%s\n' "$@"; printf '[output]\npath = "%s"\n' "$WORK/rows.jsonl"; } >job.toml
  rm -f "$WORK/rows.jsonl"
  local talk
  talk=$("$HOST" submit job.toml -q 2>&1 >/dev/null) || { same "$NAME" "$expected" "$talk"; return; }
  same "$NAME" "$expected" "$(tr -d '"\n' <"$WORK/rows.jsonl")"
}
# refused WORDS [LINES OF input]: checks that the job fails with these words.
refused() {
  local words=$1
  shift
  { echo '[input]'; printf '%s\n' "$@"; printf '[output]\npath = "%s"\n' "$WORK/rows.jsonl"; } >job.toml
  local talk
  if talk=$("$HOST" submit job.toml -q 2>&1); then same "$NAME" "an error" "$talk"; else has "$NAME" "$words" "$talk"; fi
}
# trained WORDS KEYS [LINES OF input]: checks the JSON of a job that trains a model of y by x per group of KEYS.
trained() {
  local words=$1 keys=$2
  shift 2
  {
    echo '[input]'
    printf '%s\n' "$@"
    printf '[train]\ngroup_by = %s\nfeatures = ["x"]\ntarget = "y"\ntest = 0.0\nmin_rows = 1\n' "$keys"
    printf 'models = [{ udf = "%s#linear" }]\n[output]\npath = "models.parquet"\n' "$ROOT/udfs/models"
  } >job.toml
  has "$NAME" "$words" "$("$HOST" submit job.toml --json -q 2>&1)"
}
IN='paths = ["in.csv"]'
JSON='paths = ["in.jsonl"]'

if begin 'types: a fraction behind 12,000 whole numbers'; then
  { echo k,x,y; for i in $(seq 12000); do echo "$((i % 3)),$((i % 7)),$((i % 7 * 2))"; done; echo 1,1,2.5; } >in.csv
  trained '"rows":12001,"rows_transformed":12001,"rows_dropped":0,"groups":3' '["k"]' "$IN"
fi
if begin 'types: a text behind 12,000 whole numbers'; then
  { echo k,x,y; for i in $(seq 12000); do echo "$((i % 3)),$((i % 7)),$((i % 7 * 2))"; done; echo A7,1,2; } >in.csv
  trained '"groups":4' '["k"]' "$IN"
fi
if begin 'identity: postal codes'; then
  printf 'zip,x,y\n01234,1,2\n1234,1,2\n00501,1,2\n' >in.csv
  trained '"groups":3' '["zip"]' "$IN"
  read_as '{zip:01234,x:1,y:2}{zip:1234,x:1,y:2}{zip:00501,x:1,y:2}' "$IN"
fi
if begin 'identity: ids past 2^53 and a fraction'; then
  printf 'id,x\n9007199254740992,1\n9007199254740993,1\n0.5,1\n' >in.csv
  printf '{"id":%s}\n' 9007199254740992 9007199254740993 0.5 >in.jsonl
  printf 'id,x\n9007199254740993,1\n' >whole.csv
  printf 'id,x\n0.5,1\n' >fraction.csv
  refused $'in.csv, line 2\ncolumn `id`\n`9007199254740992`\n2^53\ntypes = { id = "utf8" }' "$IN"
  refused $'in.jsonl, line 1\ncolumn `id`\n2^53\ntypes = { id = "utf8" }' "$JSON"
  refused $'whole.csv, line 2\ncolumn `id`\n2^53' 'paths = ["whole.csv", "fraction.csv"]'
  read_as '{id:9007199254740992,x:1}{id:9007199254740993,x:1}{id:0.5,x:1}' "$IN" 'types = { id = "utf8" }'
fi
if begin 'identity: unsigned integers of 64 bits'; then
  printf 'id,x,y\n18446744073709551614,1,2\n18446744073709551615,1,2\n' >in.csv
  printf '{"id":%s,"x":1,"y":2}\n' 18446744073709551614 18446744073709551615 >in.jsonl
  trained '"groups":2' '["id"]' "$IN"
  trained '"groups":2' '["id"]' "$JSON"
  read_as '{id:18446744073709551614,x:1,y:2}{id:18446744073709551615,x:1,y:2}' "$JSON"
fi
if begin 'identity: what does not read back is text'; then
  for value in +1 1_000 0x10 2020-02-30 00 ' 1' 1e400 18446744073709551616 12:30:00; do
    printf 'k,x\n%s,1\n1,2\n' "$value" >in.csv
    read_as "{k:$value,x:1}{k:1,x:2}" "$IN"
  done
  printf 'k\n1.5\nNaN\n-inf\n' >in.csv
  read_as '{k:1.5}{k:NaN}{k:-Infinity}' "$IN"
  printf 'k\n2020-01-01T00:00:00Z\n2020-01-01T00:00:00+02:00\n' >in.csv
  read_as '{k:2020-01-01T00:00:00Z}{k:2019-12-31T22:00:00Z}' "$IN"
fi
if begin 'text: line ends, marks, encodings, values'; then
  printf '\xef\xbb\xbfk,x\r\n"1\n2",3\r\n' >in.csv
  read_as '{k:1\n2,x:3}' "$IN"
  printf '\xff\xfek\0\n\0\xe4\0\n\0' >in.csv
  read_as '{k:ä}' "$IN"
  printf 'k\n\xe4\n' >in.csv
  refused $'line 2\nis not UTF-8\nencoding = "latin-1"' "$IN"
  read_as '{k:ä}' "$IN" 'encoding = "latin-1"'
  printf 'k\0,\0x\0\n\0' >in.csv
  refused 'encoding = "utf-16"' "$IN"
  printf '#c\n1;NA\n' >in.csv
  read_as '{column_1:1,column_2:null}' "$IN" 'delimiter = ";"' 'comment = "#"' 'header = false' 'null_values = ["NA"]'
  printf 'k,x\n1\n' >in.csv
  refused 'in.csv, line 2: the line has 1 values, but the first has 2' "$IN"
  printf 'k,k\n1,2\n' >in.csv
  refused 'two of its columns are named `k`' "$IN"
  { printf 'k\n1\n' | gzip; printf '2\n' | gzip; } >in.csv.gz
  read_as '{k:1}{k:2}' 'paths = ["in.csv.gz"]'
  cp in.csv.gz in.csv
  refused 'it starts like a gzip file' "$IN"
fi
if begin 'json: lines, marks, unused columns'; then
  row='{"k":1,"x":1,"y":2}'
  printf '%s\n' "$row" "$row" "$row" '{"k":1,"x":1,"y":' "$row" >in.jsonl
  refused 'in.jsonl, line 4' "$JSON"
  printf '\xef\xbb\xbf%s\n' "$row" >in.jsonl
  read_as '{k:1,x:1,y:2}' "$JSON"
  printf '%s\n' '{"k":1,"x":1,"y":2,"log":7}' '{"k":1,"x":2,"y":4,"log":{"a":[1,{}]}}' >in.jsonl
  trained '"rows":2' '["k"]' "$JSON"
  printf '%s\n' '{"k":7}' '{"k":"7"}' >in.jsonl
  refused $'in.jsonl, line 2\ncolumn `k` is text here\ntypes = { k = "utf8" }' "$JSON"
  printf '%s\n' '{"k":1,"k":2}' >in.jsonl
  refused 'in.jsonl, line 1: column `k` occurs twice in the object' "$JSON"
  printf '%s\n' '{"k":1}' '{"k":NaN}' >in.jsonl
  refused $'in.jsonl, line 2\ncolumn `k`' "$JSON"
  printf '{\n  "k": 1\n}\n{\n  "k": 2\n}\n' >in.jsonl
  read_as '{k:1}{k:2}' "$JSON"
fi
if begin 'files: without rows, hidden, folders as columns'; then
  mkdir -p t/_temporary t/.staging
  printf 'k,x,y\n9007199254740993,1,2\n' >t/a.csv
  printf 'k,x,y\n' >t/b.csv
  : >t/c.csv
  cp t/a.csv t/_temporary/a.csv
  cp t/a.csv t/.staging/a.csv
  printf '{"commit":1}\n' >t/_log.json
  read_as '{k:9007199254740993,x:1,y:2}' 'paths = ["t"]'
  read_as '{k:9007199254740993,x:1,y:2}' 'paths = ["t/**/*.csv"]'
  for year in 2019 2020; do
    for month in 05 12; do
      mkdir -p "h/year=$year/month=$month" && printf 'x\n%s\n' "$year" >"h/year=$year/month=$month/a.csv"
    done
  done
  read_as '{x:2020,year:2020,month:05}{x:2020,year:2020,month:12}' 'paths = ["h"]' 'filter = "year = 2020"'
  read_as '{x:2020,year:2020,month:5}' 'paths = ["h"]' 'filter = "year = 2020 AND month < 6"' 'types = { month = "int64" }'
fi
if begin 'filters: times'; then
  printf 'until,k\n9999-12-31 00:00:00.000000,0\n2021-06-09 03:02:37,1\n1600-01-01 00:00:00,2\n' >in.csv
  for filter in "until > '2022-01-01'" "until > TIMESTAMP '2022-01-01'" "until > CAST('2022-01-01' AS TIMESTAMP)" \
    "until > DATE '2022-01-01'" 'extract(year from until) > 2022'; do
    read_as '{until:9999-12-31T00:00:00,k:0}' "$IN" "filter = \"$filter\""
  done
fi
if begin 'filters: SQL'; then
  {
    echo k,x,i,z,t,d,b
    echo a,1.0,1,0.0,2020-01-01T00:00:00,2020-01-01,true
    echo b,,2,1.0,2020-01-02T01:00:00,2020-01-02,false
    echo a,3.0,,2.0,2020-01-03T02:00:00,2020-01-03,
    echo b,4.0,4,3.0,2020-01-04T03:00:00,2020-01-04,true
    echo ,5.0,5,4.0,2020-01-05T04:00:00,2020-01-05,true
    echo c d,6.0,6,5.0,2020-01-06T05:00:00,2020-01-06,false
  } >in.csv
  while read -r right filter; do
    printf '[input]\n%s\nfilter = """%s"""\n[output]\npath = "out.csv"\n' "$IN" "$filter" >job.toml
    came=$("$HOST" submit job.toml --json -q 2>&1)
    case $came in *'"rows":'*) came=${came#*\"rows\":} && came=${came%%,*} ;; esac
    same "$NAME: $filter" "$right" "$came"
  done <<'FILTERS'
4 coalesce(x, 0) > 2
4 nvl(x, 0) > 2
4 ifnull(x, 0) > 2
1 nullif(i, 4) IS NULL AND i IS NOT NULL
1 nvl2(x, 0, 1) = 1
5 x IS DISTINCT FROM 3
2 i BETWEEN 4 AND 5
3 k NOT IN ('a')
1 k LIKE '% %'
1 k LIKE 'c! %' ESCAPE '!'
1 k ILIKE 'C%'
2 substr(k, 1, 1) = 'b'
2 left(k, 1) = 'b'
2 split_part(k, ' ', 1) = 'b'
3 b
3 b IS NOT TRUE
3 CASE WHEN i > 3 THEN true ELSE false END
6 greatest(z, 2) >= 2
3 i % 2 = 0
2 t >= '2020-01-05'
2 t >= TIMESTAMP '2020-01-05 00:00:00'
1 d = '2020-01-03'
2 d > DATE '2020-01-04'
2 extract(day from t) > 4
6 date_trunc('month', t) = '2020-01-01'
2 t - INTERVAL '4 days' >= '2020-01-01'
2 d >= to_date('2020-01-05')
5 TRY_CAST(i AS VARCHAR) IS NOT NULL
6 1 = 1
0 false
0 i = NULL
2 k || 'x' = 'ax'
2 regexp_like(k, '^b')
2 k ~ '^b'
2 k SIMILAR TO 'b%'
1 i = 6 AND arrow_cast(z, 'Int32') = 5
1 i = '6'
1 (i, z) = (6, 5)
FILTERS
  refused $'`z IN (SELECT 1)` is a subquery\nlist the values' "$IN" 'filter = "z IN (SELECT 1)"'
  refused $'no function is named `uper`\n`upper`' "$IN" "filter = \"uper(k) = 'A'\""
  refused $'a row of in.csv\nverflow' "$IN" 'filter = "i + 9223372036854775807 > 0"'
fi
declare -A BUILT=()
# program NAME WORDS CODE ARGUMENTS OF submit: checks the output and the exit code of a program of tests/programs.
program() {
  local name=$1 words=$2 code=$3 came crate=${4%%#*}
  shift 3
  # Builds first, so that the time limit below excludes compilation.
  [ -n "${BUILT[$crate]:-}" ] || "$HOST" build "$crate" >/dev/null && BUILT[$crate]=1
  came=$(timeout 120 "$HOST" submit "$@" -q 2>&1)
  has "$name" "$words"$'\n'"exit $code" "$came"$'\n'"exit $?"
}
TASKS=$ROOT/tests/programs/tasks
ACTORS=$ROOT/tests/programs/actors
if wanted 'programs: arguments and results'; then
  for text in 12345 01234 null true '"quoted"' '' a=b; do
    quoted=${text//\"/\\\"}
    program "programs: the text \`$text\`" "\"$quoted\" None None" 0 "$TASKS#texts" --arg "text=$text"
  done
  program 'programs: a text that is left out' 'argument `text` is missing' 1 "$TASKS#texts"
  program 'programs: an argument of another name' 'has no argument `txt`' 2 "$TASKS#texts" --arg txt=x
  program 'programs: NaN' NaN 0 "$TASKS#number" --arg name=nan
  program 'programs: infinity' Infinity 0 "$TASKS#number" --arg name=inf
  program 'programs: NaN in JSON' '"result":"NaN"' 0 "$TASKS#number" --arg name=nan --json
fi
if wanted 'programs: actors that wait for each other'; then
  program 'programs: an actor that asks itself' '[deadlock]' 1 "$ACTORS#asks_itself"
  program 'programs: a call that comes back' '[deadlock]' 1 "$ACTORS#comes_back" --arg others=2
  program 'programs: actors in a ring' 'true true' 0 "$ACTORS#ask_in_a_ring" --arg actors=2
  program 'programs: a detached actor is ready' 77 0 "$ACTORS#detached_is_ready"
fi
if begin 'machine: few descriptors'; then
  mkdir many
  for i in $(seq 300); do printf 'k,x,y\n%s,1,2\n' $((i % 5)) >"many/$i.csv"; done
  for most in 64 32; do (ulimit -n "$most"; trained '"rows":300,"rows_transformed":300,"rows_dropped":0,"groups":5' '["k"]' 'paths = ["many"]'; exit $WRONG) || WRONG=1; done
fi
if begin 'machine: names, no temporary folder'; then
  mkdir 'with space'
  printf 'k\n1\n' | tee '[1].csv' "with space/ü 'q'.csv" >'with space/[1].csv'
  read_as '{k:1}' 'paths = ["[1].csv"]'
  read_as '{k:1}{k:1}' 'paths = ["with space"]'
  (export TMPDIR=$WORK/absent; read_as '{k:1}' 'paths = ["[1].csv"]'; exit $WRONG) || WRONG=1
  export TMPDIR=$WORK/absent
  program "$NAME" "$WORK/absent" 1 "$ROOT/tests/programs/objects#holds" --arg objects=40 --arg rows=1000000 --arg gets=20 --object-memory 40MiB
  unset TMPDIR
fi
# serve LOG ARGUMENTS: starts a node, which runs until this script ends.
serve() {
  local log=$1
  shift
  "$HOST" serve --workers 1 "$@" >"$log" 2>&1 &
  SERVING+=($!)
  for _ in $(seq 100); do
    grep -q 'listens on\|refused\|error' "$log" && return
    sleep 0.1
  done
}
port() { echo $((20000 + RANDOM % 20000)); }
if begin 'clusters: IPv6, names, addresses'; then
  "$HOST" cluster init --data a >/dev/null 2>&1
  at=$(port) other=$(port) third=$(port)
  serve a.log --data a --listen "[::1]:$at" --name a
  if grep -q 'listens on' a.log; then
    token=$("$HOST" cluster token --data a)
    serve b.log --data b --join "[::1]:$at" --token "$token" --listen "[::]:$other" --name twin
    has "$NAME: joined by IPv6" 'listens on' "$(cat b.log)"
    serve c.log --data c --join "[::1]:$at" --token "$token" --listen "[::]:$third" --name twin
    has "$NAME: the second of a name" "the name \`twin\` is not available" "$(cat c.log)"
    program "$NAME: a node that is not there" $'trying\ngiven up after 5 s' 1 "$TASKS#add" --arg a=1 --arg b=2 \
      --node "[::1]:$(port)" --token "$("$HOST" tenant add ada --data a && "$HOST" tenant token ada --data a)"
  else
    echo "-      $NAME: this machine has no IPv6"
  fi
fi
exit $WRONG
