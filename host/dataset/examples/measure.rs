//! Measures reading and grouping, stage by stage:
//!
//! `measure PATH --keys zone --features distance,passengers --target fare`
//! `[--per-file] [--filter SQL] [--threads 2] [--budget-mib 1024] [--runs 3]`

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use sandbar_dataset::{Grouper, Grouping, MemoryBudget, Partitions, Scan, ScanOptions, Source};

struct Options {
    paths: Vec<String>,
    named: HashMap<String, String>,
}

impl Options {
    fn parse() -> Self {
        let mut options = Options { paths: Vec::new(), named: HashMap::new() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.strip_prefix("--") {
                Some("per-file") => _ = options.named.insert("per-file".to_owned(), String::new()),
                Some(name) => _ = options.named.insert(name.to_owned(), arguments.next().unwrap_or_default()),
                None => options.paths.push(argument),
            }
        }
        options
    }

    fn number(&self, name: &str, default: usize) -> usize {
        self.named.get(name).and_then(|v| v.parse().ok()).unwrap_or(default)
    }

    fn names(&self, name: &str) -> Vec<String> {
        let text = self.named.get(name).map_or("", String::as_str);
        text.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    for _ in 0..options.number("runs", 3) {
        run(&options)?;
    }
    Ok(())
}

fn run(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let threads = options.number("threads", 2);
    let grouping = Grouping {
        keys: options.names("keys"),
        features: options.names("features"),
        target: options.names("target").concat(),
        per_file: options.named.contains_key("per-file"),
        ..Grouping::default()
    };
    let columns = [grouping.keys.clone(), grouping.features.clone(), vec![grouping.target.clone()]].concat();
    let source =
        Source { paths: options.paths.clone(), filter: options.named.get("filter").cloned(), columns: Some(columns) };
    let scan_options = ScanOptions {
        batch_rows: options.number("batch-rows", ScanOptions::default().batch_rows),
        morsel_bytes: options.number("morsel-mib", 16) as u64 * (1 << 20),
    };
    let start = Instant::now();
    let scan = futures::executor::block_on(Scan::open(source, scan_options))?;
    let opened = start.elapsed();
    let budget = MemoryBudget { bytes_max: options.number("budget-mib", 1024) << 20, ..MemoryBudget::default() };
    let grouper = Grouper::new(grouping, scan.schema(), scan.files().to_vec(), budget)?;

    let start = Instant::now();
    let push = AtomicU64::new(0);
    let next = AtomicUsize::new(0);
    let read_only = options.named.contains_key("read-only");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(morsel) = scan.morsels().get(next.fetch_add(1, Ordering::Relaxed)) {
                    let index = scan.morsels().iter().position(|m| m == morsel).unwrap_or_default();
                    let mut into = grouper.morsel(index as u64, morsel.file).expect("a morsel");
                    let mut stream = scan.read(index).expect("a stream");
                    let mut inside = Duration::ZERO;
                    while let Some(batch) = futures::executor::block_on(stream.next()) {
                        let batch = batch.expect("a batch");
                        let start = Instant::now();
                        if !read_only {
                            into.push(&batch).expect("room");
                        }
                        inside += start.elapsed();
                    }
                    let start = Instant::now();
                    into.finish().expect("room");
                    inside += start.elapsed();
                    push.fetch_add(inside.as_nanos() as u64, Ordering::Relaxed);
                }
            });
        }
    });
    let ingested = start.elapsed();
    let (resident, spilled) = grouper.usage();
    let partitions = grouper.finish()?;
    let rows = partitions.rows().max(1);
    let start = Instant::now();
    let (groups, units, checksum) = consume(&partitions, threads);
    let grouped = start.elapsed();
    let push = Duration::from_nanos(push.into_inner());
    let per_row = |t: Duration| t.as_nanos() as f64 / rows as f64;
    println!(
        "open {opened:.1?}  read+push {ingested:.1?} (push {push:.1?} cpu, {:.1} ns/row)  units {grouped:.1?} ({:.1} ns/row wall)  \
         total {:.1?}  rows {rows} groups {groups} units {units} resident {} MiB spilled {} MiB peak {} MiB sum {checksum:016x}",
        per_row(push),
        per_row(grouped),
        opened + ingested + grouped,
        resident >> 20,
        spilled >> 20,
        peak_mib(),
    );
    Ok(())
}

fn consume(partitions: &Partitions, threads: usize) -> (u64, u64, u64) {
    let next = AtomicUsize::new(0);
    let (groups, units, sum) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let partition = next.fetch_add(1, Ordering::Relaxed);
                    if partition >= partitions.len() {
                        break;
                    }
                    for unit in partitions.units(partition).expect("units") {
                        groups.fetch_add(unit.groups.len() as u64, Ordering::Relaxed);
                        units.fetch_add(1, Ordering::Relaxed);
                        let part =
                            unit.groups.iter().fold(0u64, |sum, g| sum.wrapping_add(g.seed ^ u64::from(g.first_row)));
                        let tests = unit.test_targets.iter().fold(part, |sum, v| sum.wrapping_add(v.to_bits()));
                        sum.fetch_add(tests, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    (groups.into_inner(), units.into_inner(), sum.into_inner())
}

fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|v| v.parse::<u64>().ok()).unwrap_or_default() >> 10
}
