//! Memory of processes as the kernel counts it (PSS), which divides shared pages among the processes that share them.

use std::fs;

/// Returns the bytes of a process and its children.
pub fn of_family(process: u32) -> u64 {
    let is_child = |id: &u32| parent(*id) == Some(process);
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let children = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child);
    children.chain([process]).map(proportional).sum()
}

fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, can contain any characters.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the proportional set size in bytes; 0 for a process that has ended.
fn proportional(process: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let kibibytes = rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
    kibibytes.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
